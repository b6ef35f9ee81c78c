"""Sweeps, circuits, dictionaries and graphs: what only hooklens has."""

import importlib
import importlib.util

import numpy as np
import pytest

from hooklens import SAE, Circuit, HookedTransformer, patching

CLEAN = "When Mary and John went to the store, John gave a drink to"
CORRUPTED = "When Mary and John went to the store, Mary gave a drink to"


@pytest.fixture(scope="module")
def model():
    return HookedTransformer.from_pretrained("embedded:ioi")


@pytest.fixture(scope="module")
def task(model):
    return model.patching(CLEAN, CORRUPTED, answer="Mary", wrong="John")


def difference(logits):
    return logits[0, -1, 1] - logits[0, -1, 2]


@pytest.mark.parametrize("name", ["resid_pre", "attn_head_out_all_pos", "attn_head_pattern_by_pos", "mlp_out"])
def test_sweep_equals_runs_with_hooks(model, task, name):
    swept = task.sweep(name).values[..., 0]
    function = getattr(patching, f"get_act_patch_{name}")
    _, cache = model.run_with_cache(CLEAN)
    tokens = model.to_tokens(CORRUPTED)
    in_rust = function(model, tokens, cache, difference)
    with model.hooks([("hook_embed", lambda x, hook: None)]):
        with_hooks = function(model, tokens, cache, difference)
    assert np.abs(in_rust - swept).max() < 1e-4 and np.abs(with_hooks - swept).max() < 1e-3


def test_cache_of_another_model_is_refused(model):
    other = HookedTransformer.from_pretrained("embedded:ioi")
    _, cache = other.run_with_cache(CLEAN)
    with pytest.raises(ValueError, match="another model"):
        patching.get_act_patch_resid_pre(model, model.to_tokens(CORRUPTED), cache, difference)
    third = HookedTransformer.from_pretrained_no_processing("embedded:ioi")
    with pytest.raises(ValueError, match="recorded by|processing|model"):
        third._native.apply_ln(cache._native, {"layer": None, "mlp_input": False, "rows": None, "positions": None},
                               cache._native.get("blocks.0.hook_resid_pre"))


def test_results_have_names(task):
    result = task.sweep("resid_pre")
    assert result.dims == ("layer", "pos", "example") and result.axes["pos"][1].endswith("When")
    assert result.normalized().max() == pytest.approx(1, abs=0.05)
    assert np.asarray(result).shape == result.shape and result.mean("example").shape == result.shape[:2]
    table = pytest.importorskip("pandas", reason="needs pandas") and result.to_pandas()
    assert list(table) == ["layer", "pos", "example", "value"] and len(table) == result.values.size
    assert "image/svg+xml" in result._repr_mimebundle_() and result.to_csv().startswith("layer,")


def test_circuit_of_all_edges_is_the_model(model, task):
    scores = task.edges("eap-ig")
    everything = scores.circuit(10**6)
    kept, dropped = task.run_circuits([everything, everything.complement()])
    assert kept.value == pytest.approx(1, abs=1e-4) and dropped.value == pytest.approx(0, abs=1e-4)
    small = scores.circuit(50)
    assert 0.9 < task.run_circuits([small])[0].value < 1.1
    again = Circuit.from_json(model, small.to_json())
    assert again.edges() == small.edges() and again.jaccard(small) == 1
    other = HookedTransformer.from_pretrained_no_processing("embedded:ioi")
    with pytest.raises(ValueError, match="model"):
        Circuit.from_json(other, small.to_json())
    assert "image/svg+xml" in small._repr_mimebundle_()
    curve = task.faithfulness(scores, shares=[0.1, 0.5, 1.0])
    assert curve.faithfulness[-1] == pytest.approx(1, abs=1e-4)
    whole, worst = task.adversarial_ablation(small)
    assert worst <= whole + 1e-6
    masks = task.edges("learned-masks", steps=20, keep=0.2)
    assert len(masks.circuit(40)) <= 40
    assert 0 < len(task.acdc(1.0)) < len(everything)


def test_spliced_dictionary_changes_nothing(model):
    sae = SAE.from_pretrained("embedded:ioi-sae")
    spliced = model.splice(sae)
    assert np.abs(spliced(CLEAN) - model(CLEAN)).max() < 1e-5
    name = f"{sae.hook_name}.hook_sae_acts_post"
    _, cache = spliced.run_with_cache(CLEAN)
    acts = sae.encode(model.run_with_cache(CLEAN)[1][sae.hook_name])
    # The dictionary excludes the beginning-of-sequence token.
    assert np.abs(cache[name] - acts)[:, 1:].max() < 1e-4 and not cache[name][:, 0].any()
    off = spliced.run_with_hooks(CLEAN, fwd_hooks=[(name, lambda x, hook: np.zeros_like(x))])
    assert np.abs(off - model(CLEAN)).max() > 1e-2
    assert sae(np.zeros(64, dtype=np.float32)).shape == (64,) and sae.W_dec.shape == (256, 64)
    assert sae.b_enc.shape == (256,) and sae.b_dec.shape == (64,)
    assert (sae.cfg.d_in, sae.cfg.d_sae, sae.cfg.metadata.hook_name) == (64, 256, sae.hook_name)
    assert sae.cfg.architecture() == "jumprelu"
    x = cache[sae.hook_name]
    pre = (x - sae.b_dec) @ sae.W_enc + sae.b_enc
    assert np.abs(np.where(pre > sae.threshold, pre, 0) - sae.encode(x)).max() < 1e-4


def test_circuit_of_nodes(model, task):
    scores = task.node_scores("heads", method="exact")
    everything = scores.circuit(16)
    kept, dropped, top = task.run_nodes([everything, everything.complement(), scores.circuit(6)])
    assert kept.value == pytest.approx(1, abs=1e-4) and dropped.value == pytest.approx(0, abs=1e-4)
    assert top.value > 0.5 and len(scores.circuit(6)) == 6
    assert scores.circuit(1).names()[0].startswith("layer ")
    again = scores.circuit_from_json(everything.to_json())
    assert again.names() == everything.names()
    neurons = task.node_scores("neurons", by_position=True, ablation="mean-positional")
    assert neurons.effects.shape[:2] == (4, 15)
    with pytest.raises(ValueError, match="heads, mlps, neurons or latents"):
        task.node_scores("layers")
    with pytest.raises(ValueError, match="differ from the circuit"):
        task.run_nodes([everything, neurons.circuit(3)])


def test_training_makes_a_dictionary(model, tmp_path):
    names = ["Mary", "John", "Tom", "Anna", "Lucy", "Paul"]
    texts = [CLEAN.replace("Mary", a).replace("John", b) for a in names for b in names if a != b]
    seen = []
    sae = SAE.train(
        model, texts, "blocks.2.hook_resid_post", d_sae=64, k=8, tokens=20_000, batch_size=256,
        progress=lambda tokens, explained, l0: seen.append(tokens),
    )
    assert sae.d_sae == 64 and sae.held_out.explained_variance > 0.5 and seen
    sae.save_model(tmp_path / "sae")
    again = SAE.from_pretrained(tmp_path / "sae")
    assert again.hook_name == "blocks.2.hook_resid_post" and np.array_equal(again.W_dec, sae.W_dec)


def test_graph_explains_its_targets(model, tmp_path):
    graph = model.attribution_graph(CLEAN, transcoders="embedded:ioi-transcoders", answer="Mary", wrong="John")
    nodes = graph.nodes()
    target = len(nodes) - 1
    assert nodes[target].kind == "logit" and graph.deviation < 1e-4
    effects = graph.effects_on(target)
    assert len(effects) == sum(node.kind != "logit" for node in nodes)
    strongest = max((node for node in range(target) if nodes[node].kind == "feature"), key=lambda n: effects[n])
    node = nodes[strongest]
    edits = [(node.layer, node.position, node.unit, 0.0)]
    plain, edited = model(CLEAN), model.intervene(CLEAN, edits, transcoders="embedded:ioi-transcoders")
    assert difference(edited) < difference(plain)
    kept, edges = graph.prune(0.8, 0.98)
    assert target in kept and edges
    graph.save(tmp_path / "graph.html")
    assert "<html" in (tmp_path / "graph.html").read_text() and "text/html" in graph._repr_mimebundle_()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.patching(CLEAN, "When Mary", answer="Mary"), ValueError, "length"),
        (lambda m: m.patching(CLEAN, CORRUPTED), TypeError, "answer"),
        (lambda m: m.patching(CLEAN, CORRUPTED, answer="Mary").sweep("resid"), ValueError, "resid_pre"),
        (lambda m: m.patching(CLEAN, CORRUPTED, answer="Mary").edges("gradient"), ValueError, "eap-ig"),
        (lambda m: m.patching(CLEAN, CLEAN, answer="Mary", wrong="John").sweep("resid_pre").normalized(), ValueError, "normalize"),
        (lambda m: SAE.from_pretrained("embedded:ioi"), ValueError, "ioi"),
        (lambda m: m.attribution_graph(CLEAN, transcoders="embedded:ioi-transcoders", answer="Mary John"), ValueError, "Mary John"),
        (lambda m: m.attribution_graph(CLEAN, wrong="John"), TypeError, "answer"),
    ],
)
def test_errors_name_the_thing(model, call, error, message):
    with pytest.raises(error, match=message):
        call(model)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, ZeroDivisionError])
def test_functions_that_raise_end_the_run_at_once(model, raised):
    calls = []

    def third(*_):
        calls.append(1)
        if len(calls) == 3:
            raise raised("third call")
        return 0.0

    metric = model.patching(CLEAN, CORRUPTED, metric=third)
    watched = model.patching(CLEAN, CORRUPTED, answer="Mary", wrong="John")
    works = [
        lambda: metric.sweep("attn_head_out_by_pos"),
        lambda: watched.sweep("resid_pre", third),
        lambda: metric.edges("exact"),
        lambda: SAE.train(model, [CLEAN] * 50, "blocks.2.hook_resid_pre", d_sae=64, k=4, tokens=20_000, progress=third),
    ]
    for number, work in enumerate(works):
        calls.clear()
        with pytest.raises(raised, match="third call"):
            work()
        assert len(calls) == 3, number
    assert np.isfinite(model(CLEAN)).all()


def with_slope(logits):
    slope = np.zeros_like(logits)
    slope[0, -1, 1], slope[0, -1, 2] = 1, -1
    return difference(logits), slope


def metrics():
    yield HookedTransformer, with_slope
    for name in ("torch", "jax"):
        if importlib.util.find_spec(name) is not None:
            yield importlib.import_module(f"hooklens.{name}").HookedTransformer, difference


@pytest.mark.parametrize(("framework", "function"), list(metrics()))
def test_metrics_in_python_have_gradients(framework, function, task):
    own = framework.from_pretrained("embedded:ioi").patching(CLEAN, CORRUPTED, metric=function)
    for name in ("resid_pre", "attn_head_out_all_pos"):
        ours, theirs = task.attribution(name).values, own.attribution(name).values
        assert np.abs(np.asarray(ours) - np.asarray(theirs)).max() < 1e-4 * np.abs(np.asarray(ours)).max()
    for method in ("eap", "eap-ig", "mask-gradients"):
        ours, theirs = (np.asarray(one.edges(method).mean().values) for one in (task, own))
        assert np.abs(ours - theirs).max() < 1e-4 * np.abs(ours).max()
    assert np.abs(np.asarray(task.sweep("mlp_out").values) - np.asarray(own.sweep("mlp_out").values)).max() < 1e-4


def test_metrics_without_gradients_are_refused(model):
    own = model.patching(CLEAN, CORRUPTED, metric=difference)
    with pytest.raises(TypeError, match="must return a pair"):
        own.attribution("resid_pre")
    wrong = model.patching(CLEAN, CORRUPTED, metric=lambda logits: (0.0, logits[..., :5]))
    with pytest.raises(ValueError, match="gradient of the metric has shape"):
        wrong.edges("eap")
    with pytest.raises(ValueError, match="gradient of the metric has type NoneType"):
        model.patching(CLEAN, CORRUPTED, metric=lambda logits: (0.0, None)).edges("eap")
    for returned in (None, "far", np.zeros(3), (1, 2, 3)):
        with pytest.raises(TypeError, match="the metric must return a number"):
            model.patching(CLEAN, CORRUPTED, metric=lambda logits: returned).sweep("resid_pre")
    with pytest.raises(TypeError, match="function of logits"):
        model.patching(CLEAN, CORRUPTED, metric="logit_diff")


def test_each_pair_may_have_a_metric(model):
    texts = [CLEAN, CLEAN.replace("Mary", "Tom")]
    corrupted = [CORRUPTED, CORRUPTED.replace("Mary", "Tom")]
    both = model.patching(texts, corrupted, answer=["Mary", "Tom"], wrong=["John", "John"]).sweep("mlp_out")
    tokens = [model.to_single_token(name) for name in ("Mary", "Tom", "John")]
    metrics = [lambda logits, token=token: logits[0, -1, token] - logits[0, -1, tokens[2]] for token in tokens[:2]]
    own = model.patching(texts, corrupted, metric=metrics).sweep("mlp_out")
    assert np.abs(own.values - both.values).max() < 1e-4
    with pytest.raises(ValueError, match="there are 1 metrics for 2 pairs"):
        model.patching(texts, corrupted, metric=metrics[:1])
