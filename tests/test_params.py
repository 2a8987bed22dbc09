"""SamplingParams: every row of the validation table, by the text of its error."""

import math
from dataclasses import fields, replace

import pytest

from refsampler.params import SamplingParams
from refsampler.validation import ParameterError, ParameterTypeError

INF = math.inf
NAN = math.nan

PENALTY = "a number from -2 to 2"
REPETITION = "a number from 2**-64 to 2**64"
TEMPERATURE = "a number from 0 (greedy) to 2"
FLOOR = "a number from 0 (off) to 2"
TOP_P = "a number above 0, at most 1 (off)"
TOP_K = "an integer: 0 or -1 (off), or at least 1"
MIN_P = "a number from 0 (off) to 1"
MAX_TOKENS = "None or an integer of at least 1"
MIN_TOKENS = "an integer from 0 to max_tokens (16)"
SEED = "None, -1 (none), or an integer from -2**63 to 2**64 - 1"
BUDGET = "None, -1 (unlimited), or an integer of at least 0"
LOGPROBS = "None, -1 (all), or an integer of at least 0"
SEQUENCES = "an integer from 1 to 16384"
WORDS = "strings that are not empty"
BIAS = "a number from -2**64 to 2**64, or -inf as a ban"

REFUSED = [
    ("n", 0, SEQUENCES),
    ("n", 16385, SEQUENCES),
    *[("presence_penalty", x, PENALTY) for x in (-2.01, 2.01, INF, -INF, NAN, 10**400)],
    *[("frequency_penalty", x, PENALTY) for x in (-2.01, 2.01, INF, -INF, NAN)],
    *[("repetition_penalty", x, REPETITION) for x in (0, 2.0**-65, -0.5, 2.0**65, INF, NAN)],
    *[("temperature", x, TEMPERATURE) for x in (-0.01, 2.01, INF, NAN)],
    *[("temperature_floor", x, FLOOR) for x in (-0.01, 2.01, NAN)],
    *[("top_p", x, TOP_P) for x in (0.0, -0.1, 1.01, NAN)],
    ("top_k", -2, TOP_K),
    *[("min_p", x, MIN_P) for x in (-0.1, 1.01, NAN)],
    ("max_tokens", 0, MAX_TOKENS),
    ("min_tokens", -1, MIN_TOKENS),
    ("min_tokens", 17, MIN_TOKENS),
    ("seed", -(2**63) - 1, SEED),
    ("seed", 2**64, SEED),
    *[("thinking_token_budget", x, BUDGET) for x in (-2, True, 1.0)],
    ("logprobs", -2, LOGPROBS),
    ("prompt_logprobs", -2, LOGPROBS),
    ("bad_words", ("a", ""), WORDS),
    ("stop", ("",), WORDS),
    ("bad_words_token_ids", ((1,), ()), "a tuple of tuples of at least one id"),
    ("allowed_token_ids", (), "None or at least one id"),
    ("logit_bias", ((1, 0.5), (1, 0.5)), "each id once"),
]

WRONG_TYPE = [
    ("n", 1.0, SEQUENCES),
    ("presence_penalty", "1", PENALTY),
    ("frequency_penalty", None, PENALTY),
    ("repetition_penalty", True, REPETITION),
    ("temperature", None, TEMPERATURE),
    ("top_p", "0.9", TOP_P),
    ("top_k", 5.0, TOP_K),
    ("min_p", None, MIN_P),
    ("max_tokens", 1.5, MAX_TOKENS),
    ("min_tokens", 1.5, "an integer from 0 to max_tokens"),
    ("seed", 1.5, SEED),
    ("logprobs", 1.5, LOGPROBS),
    ("prompt_logprobs", "1", LOGPROBS),
]

BOUNDARY = [
    ("n", (1, 16384)),
    ("presence_penalty", (-2, 2.0)),
    ("frequency_penalty", (-2.0, 2)),
    ("repetition_penalty", (2.0**-64, 2.0**64)),
    ("temperature", (0, 0.01, 2.0)),
    ("temperature_floor", (0, 2)),
    ("top_p", (1e-30, 1)),
    ("top_k", (-1, 0, 1, 10**9, True)),
    ("min_p", (0, 1)),
    ("max_tokens", (None, 1)),
    ("min_tokens", (0, 16)),
    ("seed", (None, -(2**63), 0, 2**64 - 1)),
    ("thinking_token_budget", (None, 0)),
    ("logprobs", (None, -1, 0, 10**6)),
    ("prompt_logprobs", (None, -1, 0)),
    ("logprob_token_ids", (None, (), tuple(range(128)))),
    ("allowed_token_ids", (None, (7,))),
    ("logit_bias", ((), ((3, -INF), (4, 2.0**64), (5, 0)))),
]


@pytest.mark.parametrize(("field", "value", "allowed"), REFUSED)
def test_out_of_range_names_field_value_and_range(field, value, allowed):
    with pytest.raises(ParameterError) as error:
        SamplingParams(**{field: value})
    assert str(error.value) == f"{field} = {value!r} is refused: allowed is {allowed}"
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(("field", "value", "allowed"), WRONG_TYPE)
def test_wrong_type_names_field_value_and_range(field, value, allowed):
    with pytest.raises(ParameterTypeError) as error:
        SamplingParams(**{field: value})
    assert str(error.value) == f"{field} = {value!r} is refused: allowed is {allowed}"
    assert isinstance(error.value, TypeError)


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in BOUNDARY for v in values])
def test_the_boundary_is_inside(field, value):
    assert getattr(SamplingParams(**{field: value}), field) == value


def test_every_validated_field_is_in_the_tables():
    unchecked = {"detokenize", "stop_token_ids", "eos_token_id", "ignore_eos"}
    seen = {field for field, *_ in (*REFUSED, *WRONG_TYPE)} | {"logprob_token_ids"}
    assert seen == {one.name for one in fields(SamplingParams)} - unchecked


def test_defaults_are_those_of_vllm():
    p = SamplingParams()
    assert (p.n, p.presence_penalty, p.frequency_penalty, p.repetition_penalty) == (1, 0, 0, 1)
    assert (p.temperature, p.top_p, p.top_k, p.min_p, p.seed) == (1, 1, 0, 0, None)
    assert (p.max_tokens, p.min_tokens, p.logprobs, p.prompt_logprobs) == (16, 0, None, None)
    assert (p.logprob_token_ids, p.allowed_token_ids, p.thinking_token_budget) == (None,) * 3


@pytest.mark.parametrize("bias", [INF, NAN, 2.0**65, -(2.0**65), 10**400])
def test_a_bias_that_could_overflow_a_logit_is_refused(bias):
    with pytest.raises(ParameterError) as error:
        SamplingParams(logit_bias=((2, 1.0), (7, bias)))
    assert str(error.value) == f"logit_bias[7] = {bias!r} is refused: allowed is {BIAS}"


def test_a_bias_of_the_wrong_type_is_refused():
    with pytest.raises(ParameterTypeError, match=r"logit_bias\[7\] = '1' is refused"):
        SamplingParams(logit_bias=((7, "1"),))  # type: ignore[arg-type]  # the point of the test


def test_min_tokens_without_max_tokens_has_no_upper_limit():
    assert SamplingParams(min_tokens=10**6, max_tokens=None).min_tokens == 10**6


def test_at_most_128_listed_logprobs():
    with pytest.raises(ParameterError) as error:
        SamplingParams(logprob_token_ids=tuple(range(129)))
    expected = "logprob_token_ids = '129 ids' is refused: allowed is at most 128 ids"
    assert str(error.value) == expected


def test_logprobs_must_be_the_number_of_listed_ids():
    assert SamplingParams(logprob_token_ids=(4, 5), logprobs=2).logprobs == 2
    with pytest.raises(ParameterError) as error:
        SamplingParams(logprob_token_ids=(4, 5), logprobs=3)
    allowed = "None or 2, the number of logprob_token_ids"
    assert str(error.value) == f"logprobs = 3 is refused: allowed is {allowed}"


def test_stop_strings_need_detokenize():
    assert SamplingParams(stop=("x",)).stop == ("x",)
    with pytest.raises(ParameterError) as error:
        SamplingParams(stop=("x",), detokenize=False)
    allowed = "stop strings only with detokenize=True"
    assert str(error.value) == f"stop = ('x',) is refused: allowed is {allowed}"


def test_a_greedy_request_has_one_sequence():
    with pytest.raises(ParameterError) as error:
        SamplingParams(n=2, temperature=0.0)
    assert str(error.value) == "n = 2 is refused: allowed is 1 for a greedy request"


@pytest.mark.parametrize(
    ("asked", "effective"),
    [(0.0, 0.0), (1e-9, 0.01), (0.00999, 0.01), (0.01, 0.01), (0.5, 0.5)],
)
def test_a_low_temperature_is_raised_and_shown(asked, effective):
    assert SamplingParams(temperature=asked).temperature == effective


@pytest.mark.parametrize(("asked", "greedy"), [(9.9e-6, True), (1e-5, False), (1e-3, False)])
def test_a_floor_of_zero_keeps_what_was_asked(asked, greedy):
    params = SamplingParams(temperature=asked, temperature_floor=0)
    assert params.temperature == asked
    assert params.greedy is greedy


def test_a_greedy_request_loses_its_filters_and_nothing_else():
    params = SamplingParams(
        temperature=0,
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        repetition_penalty=1.5,
        logit_bias=((1, 2.0),),
        allowed_token_ids=(1, 2),
    )
    assert (params.top_p, params.top_k, params.min_p) == (1.0, 0, 0.0)
    assert (params.repetition_penalty, params.logit_bias) == (1.5, ((1, 2.0),))
    assert params.allowed_token_ids == (1, 2)


def test_a_top_p_that_float32_would_make_zero_is_raised_and_shown():
    assert SamplingParams(top_p=1e-50).top_p == 2.0**-126
    assert SamplingParams(top_p=1e-30).top_p == 1e-30


def test_a_raised_temperature_is_not_greedy_and_keeps_its_filters():
    params = SamplingParams(temperature=1e-6, top_p=0.5, top_k=3, min_p=0.1)
    assert (params.greedy, params.top_p, params.top_k, params.min_p) == (False, 0.5, 3, 0.1)


def test_minus_one_is_none_where_it_means_none():
    params = SamplingParams(seed=-1, thinking_token_budget=-1)
    assert params.seed is None
    assert params.thinking_token_budget is None


def test_true_logprobs_are_one():
    params = SamplingParams(logprobs=True, prompt_logprobs=True)
    assert (type(params.logprobs), params.logprobs) == (int, 1)
    assert (type(params.prompt_logprobs), params.prompt_logprobs) == (int, 1)


def test_effective_values_survive_a_copy():
    params = SamplingParams(temperature=1e-6, seed=-1, logprobs=True)
    assert replace(params) == params


@pytest.mark.parametrize(
    ("changed", "penalised"),
    [
        ({}, False),
        ({"repetition_penalty": 1.1}, True),
        ({"frequency_penalty": -0.1}, True),
        ({"presence_penalty": 0.1}, True),
    ],
)
def test_penalised_is_any_penalty(changed, penalised):
    assert SamplingParams(**changed).penalised is penalised


def test_eos_is_a_stop_id_even_when_it_is_ignored():
    params = SamplingParams(stop_token_ids=(4, 5), eos_token_id=2, ignore_eos=True)
    assert params.all_stop_token_ids == {2, 4, 5}
    assert SamplingParams(stop_token_ids=(4,)).all_stop_token_ids == {4}


def test_the_api_path_clamps_biases_and_drops_none():
    params = SamplingParams.from_optional(
        logit_bias={1: 100.5, 2: -INF, 3: 100.0, 4: -7.0}, temperature=None, top_k=5, seed=None
    )
    assert params.logit_bias == ((1, 100.0), (2, -100.0), (3, 100.0), (4, -7.0))
    assert (params.temperature, params.top_k, params.seed) == (1.0, 5, None)
    assert SamplingParams.from_optional() == SamplingParams()


def test_the_api_path_refuses_nan_instead_of_clamping_it():
    with pytest.raises(ParameterError, match=r"logit_bias\[1\] = nan is refused"):
        SamplingParams.from_optional(logit_bias={1: NAN})


@pytest.mark.parametrize("token", [-1, 10])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", lambda token: ((0, 1.0), (token, 1.0))),
        ("allowed_token_ids", lambda token: (0, token)),
        ("stop_token_ids", lambda token: (0, token)),
        ("eos_token_id", lambda token: token),
        ("bad_words_token_ids", lambda token: ((0,), (9, token))),
        ("logprob_token_ids", lambda token: (0, token)),
    ],
)
def test_verify_refuses_ids_outside_the_vocabulary(field, value, token):
    params = SamplingParams(**{field: value(token)})
    with pytest.raises(ParameterError) as error:
        params.verify(10)
    assert str(error.value) == f"{field} = {token} is refused: allowed is ids from 0 to 9"
    SamplingParams(**{field: value(9)}).verify(10)


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
@pytest.mark.parametrize(
    ("wanted", "cap", "most"),
    [(21, 20, 20), (-1, 20, 20), (51, -1, 50), (51, 60, 50)],
)
def test_verify_caps_the_number_of_logprobs(field, wanted, cap, most):
    params = SamplingParams(**{field: wanted})
    with pytest.raises(ParameterError) as error:
        params.verify(50, max_logprobs=cap)
    expected = f"{field} = {wanted} is refused: allowed is at most {most} logprobs a token"
    assert str(error.value) == expected


def test_verify_admits_the_cap_and_the_whole_vocabulary():
    SamplingParams(logprobs=20).verify(50)
    SamplingParams(logprobs=50).verify(50, max_logprobs=-1)
    SamplingParams(logprobs=-1, prompt_logprobs=-1).verify(50, max_logprobs=-1)
    SamplingParams().verify(1)


@pytest.mark.parametrize(
    ("field", "value", "shown", "allowed"),
    [
        ("logit_bias", {1: 2.0}, {1: 2.0}, "a tuple of pairs (id, bias)"),
        ("logit_bias", ((1,),), (1,), "a tuple of pairs (id, bias)"),
        ("stop_token_ids", 5, 5, "a tuple of ids"),
        ("stop_token_ids", [5], [5], "a tuple of ids"),
        ("allowed_token_ids", 5, 5, "None or a tuple of ids"),
        ("logprob_token_ids", 5, 5, "None or a tuple of ids"),
        ("bad_words", "ab", "ab", "a tuple of strings"),
        ("stop", "ab", "ab", "a tuple of strings"),
        ("bad_words_token_ids", (5,), 5, "a tuple of tuples of at least one id"),
    ],
)
def test_a_collection_of_another_shape_is_refused_by_name(field, value, shown, allowed):
    with pytest.raises(ParameterTypeError) as error:
        SamplingParams(**{field: value})
    assert str(error.value) == f"{field} = {shown!r} is refused: allowed is {allowed}"


def test_banned_strings_need_their_ids():
    with pytest.raises(ParameterError, match=r"bad_words = \('ab',\) is refused: allowed is words"):
        SamplingParams(bad_words=("ab",)).verify(10)
    SamplingParams(bad_words=("ab",), bad_words_token_ids=((1, 2),)).verify(10)


def test_no_legal_request_overflows_a_legal_logit():
    # the largest logit, penalty and bias over the lowest temperature stay finite in float32
    assert (65504 * 2.0**64 + 2.0**64) / 1e-5 < 2.0**127
