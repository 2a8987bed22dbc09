"""vLLM 0.25.1: one request's list of ids takes the top N from its neighbours.

Row 0 asks for its two most probable ids, row 1 for ids 4 and 5 by name.  `Sampler.forward` then
returns the listed ids of all rows: of row 0, which has no list, the sampled id and padding (id 0 at
minus infinity), of which the frontend reads two as if they were its top 2.
"""

from types import SimpleNamespace

import torch
from vllm.v1.sample.sampler import Sampler

logits = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0, 9.0]] * 2)
shared = {
    "all_greedy": True,
    "all_random": False,
    "temperature": None,
    "no_penalties": True,
    "allowed_token_ids_mask": None,
    "bad_words_token_ids": {},
    "logitsprocs": SimpleNamespace(argmax_invariant=(), non_argmax_invariant=()),
    "output_token_ids": [[], []],
    "spec_token_ids": None,
    "thinking_budget_state_holder": None,
    "max_num_logprobs": 2,
}
for title, lists in (("nobody lists ids:", None), ("row 1 lists 4 and 5:", {1: [4, 5]})):
    metadata = SimpleNamespace(**shared, logprob_token_ids=lists)
    given = Sampler()(logits.clone(), metadata).logprobs_tensors
    print(title, given.logprob_token_ids[0].tolist(), given.logprobs[0].tolist())
