"""Hugging Face Accelerate: torchrun --nproc-per-node 4 examples/torch_accelerate.py [SPEC]."""

import sys

import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy

import gradwire.torch

spec = sys.argv[1] if len(sys.argv) > 1 else "topk:1%,int4"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
inputs = torch.randn(8192, 64)
targets = (inputs @ torch.randn(64, 10)).argmax(1)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(inputs, targets), batch_size=32, shuffle=True
)

# [setup]
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
exchange = gradwire.torch.register(model, spec, scaler=accelerator.scaler)  # behind prepare()
# [setup-end]

steps = 0
for _ in range(8):
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(cross_entropy(model(x), y))
            optimizer.step(), optimizer.zero_grad()
            steps += accelerator.sync_gradients

accuracy = (model(inputs).argmax(1) == targets).float().mean().item()
stats = exchange.stats()
accelerator.print(
    f"{spec}: accuracy {accuracy:.3f}, {stats['bytes_sent']:.0f} bytes sent by a rank in a step, "
    f"gradients have {stats['dense_bytes']:.0f}"
)
assert accuracy > 0.8, "the model has learned"
assert stats["step"] == steps - 1, "two passes are one exchange"
exchange.close()
accelerator.end_training()
