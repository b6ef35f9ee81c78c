"""Ctrl-C and processes."""

import multiprocessing
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from hooklens import HookedTransformer

CLEAN = "When Mary and John went to the store, John gave a drink to"


def interrupted(work):
    """Runs `work` in a new Python, interrupts it, and returns the seconds until it ended, and what it printed."""
    program = textwrap.dedent(
        """
        import signal, sys
        from hooklens import SAE, HookedTransformer, HookedTransformerConfig
        signal.signal(signal.SIGINT, signal.default_int_handler)
        cfg = HookedTransformerConfig(n_layers=8, d_model=256, n_ctx=256, d_head=32, d_vocab=100, act_fn="gelu_new")
        model = HookedTransformer(cfg)
        ids = [[i % 100 for i in range(200)]]
        try:
            print("started", flush=True)
            WORK
        except KeyboardInterrupt:
            print("interrupted", model([[1, 2, 3]]).shape, flush=True)
        """
    ).replace("WORK", work)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "started\n"
    time.sleep(1.0)
    assert process.poll() is None, "the work ended before it was interrupted"
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    printed = process.communicate(timeout=60)[0]
    return time.monotonic() - start, printed


@pytest.mark.skipif(sys.platform == "win32", reason="signals work differently on Windows")
@pytest.mark.parametrize(
    "work",
    [
        'model.patching(ids, [ids[0][::-1]], answer=3, wrong=4).sweep("attn_head_out_by_pos")',
        'model.patching(ids, [ids[0][::-1]], metric=lambda x: x[0, -1, 3]).sweep("attn_head_out_by_pos")',
        "model._native.train_dictionary(ids * 50, 'blocks.6.hook_resid_post', 2048, k=32, tokens=10**7, batch_size=512)",
        "[model.generate(ids, max_new_tokens=20, do_sample=False, stop_at_eos=False) for _ in range(9999)]",
    ],
    ids=["sweep", "metric", "training", "runs"],
)
def test_interrupt_ends_long_work(work):
    seconds, printed = interrupted(work)
    assert "interrupted (1, 3, 100)" in printed, printed
    # Checks only that the run did not continue to its end, which would take minutes.
    assert seconds < 20


def run_in_child(queue):
    model = HookedTransformer.from_pretrained("embedded:ioi")
    queue.put(float(model(CLEAN)[0, -1, 1]))


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_child_processes_run_models(method):
    model = HookedTransformer.from_pretrained("embedded:ioi")
    expected = float(model(CLEAN)[0, -1, 1])  # starts the threads that a forked child does not have
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    children = [context.Process(target=run_in_child, args=(queue,)) for _ in range(2)]
    for child in children:
        child.start()
    got = [queue.get(timeout=60) for _ in children]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert all(abs(value - expected) < 1e-4 for value in got)


def test_inherited_model_runs_in_a_data_loader():
    torch = pytest.importorskip("torch", reason="needs torch")
    from hooklens.torch import HookedTransformer as Torch

    model = Torch.from_pretrained("embedded:ioi")
    texts = [CLEAN, CLEAN.replace("John gave", "Mary gave")] * 4

    class Logits(torch.utils.data.Dataset):
        def __len__(self):
            return len(texts)

        def __getitem__(self, at):
            with torch.no_grad():
                return model(texts[at])[0, -1].clone()

    loader = torch.utils.data.DataLoader(Logits(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    rows = torch.cat(list(loader))
    with torch.no_grad():
        assert torch.allclose(rows, torch.cat([model(text)[:, -1] for text in texts]), atol=1e-4)


def test_threads_share_a_model():
    from concurrent.futures import ThreadPoolExecutor

    model = HookedTransformer.from_pretrained("embedded:ioi")
    expected = model(CLEAN)
    with ThreadPoolExecutor(4) as pool:
        for logits in pool.map(lambda _: model(CLEAN), range(32)):
            assert abs(logits - expected).max() < 1e-5
