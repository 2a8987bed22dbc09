"""mlx-lm 0.32.2: top-k of the vocabulary or more, which filters nothing, is refused at the first draw.

Needs mlx-lm only; its sampling is one file.
"""

import importlib.util

import mlx.core as mx

folder = importlib.util.find_spec("mlx_lm").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("sample_utils", f"{folder}/sample_utils.py")
utils = importlib.util.module_from_spec(spec)
spec.loader.exec_module(utils)

logprobs = mx.log(mx.array([[0.5, 0.25, 0.125, 0.125]]))
for top_k in (3, 4, 5):
    try:
        drawn = utils.make_sampler(temp=1.0, top_k=top_k)(logprobs)
        print("top_k", top_k, "of 4 ids: id", drawn.item())
    except ValueError as error:
        print("top_k", top_k, "of 4 ids:", error)
