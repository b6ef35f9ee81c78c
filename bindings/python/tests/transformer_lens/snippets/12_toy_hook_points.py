# demos/Main_Demo.ipynb, "Hook Points", "Toy Example"
import torch
from transformer_lens.hook_points import HookedRootModule, HookPoint


class Cell(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(size * size).reshape(size, size) / 10)
        self.hook_pre = HookPoint()

    def forward(self, x):
        return self.hook_pre(x @ self.weight).relu()


class Network(HookedRootModule):
    def __init__(self):
        super().__init__()
        self.cells = torch.nn.ModuleList([Cell(3), Cell(3)])
        self.hook_in = HookPoint()
        self.hook_out = HookPoint()
        self.setup()  # names the hook points

    def forward(self, x):
        x = self.hook_in(x)
        for cell in self.cells:
            x = cell(x)
        return self.hook_out(x)


network = Network()
x = torch.tensor([1.0, -2.0, 0.5])
out, cache = network.run_with_cache(x)
patched = network.run_with_hooks(x, fwd_hooks=[("cells.1.hook_pre", lambda value, hook: value - 1)])

results = {
    "out": out,
    "cached": list(cache),
    "pre": cache["cells.0.hook_pre"],
    "hooks": list(network.hook_dict),
    "patched": patched,
}
