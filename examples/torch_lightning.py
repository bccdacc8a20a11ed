"""Lightning: torchrun --nproc-per-node 4 examples/torch_lightning.py [SPEC]."""

import os
import sys

import lightning
import torch
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch.nn.functional import cross_entropy

import gradwire.torch

spec = sys.argv[1] if len(sys.argv) > 1 else "topk:1%,int4"


# [setup]
class Gradwire(lightning.Callback):
    """DDP's gradients of a Lightning run through gradwire."""

    def __init__(self, spec):
        self.spec = spec

    def on_train_start(self, trainer, module):
        self.exchange = gradwire.torch.register(trainer.strategy.model, self.spec)

    def on_train_end(self, trainer, module):
        self.stats = self.exchange.stats()
        self.exchange.close()


# [setup-end]


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
        )

    def training_step(self, batch, _):
        inputs, targets = batch
        return cross_entropy(self.net(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


lightning.seed_everything(0)
inputs = torch.randn(8192, 64)
targets = (inputs @ torch.randn(64, 10)).argmax(1)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(inputs, targets), batch_size=32, shuffle=True
)
model, callback = Model(), Gradwire(spec)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy=DDPStrategy(cluster_environment=TorchElasticEnvironment(), process_group_backend="gloo"),
    max_epochs=5,
    callbacks=[callback],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, loader)
accuracy = (model.net(inputs).argmax(1) == targets).float().mean().item()
if trainer.is_global_zero:
    print(
        f"{spec}: accuracy {accuracy:.3f}, {callback.stats['bytes_sent']:.0f} bytes sent by a rank in "
        f"a step, gradients have {callback.stats['dense_bytes']:.0f}"
    )
assert accuracy > 0.8, "the model has learned"
