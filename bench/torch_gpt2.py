"""A training step of GPT-2 124M in PyTorch, compiled, beside bench/train_step.c: bf16 by autocast,
flash attention, fused AdamW, random tokens. Prints one JSON object a line.

usage: torch_gpt2.py [batch ...]        default: 64 16
"""
import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

LAYERS, HEADS, DIM, CONTEXT, VOCAB = 12, 12, 768, 1024, 50304


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, HEADS, c // HEADS).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(c, dim=2)
        )
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, DIM), nn.Embedding(CONTEXT, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        self.head.weight = self.tokens.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def measure(batch, steps=10):
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    model = Gpt().cuda()
    optim = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    compiled = torch.compile(model)
    ids = torch.randint(0, 50257, (batch, CONTEXT), device="cuda")
    targets = torch.randint(0, 50257, (batch, CONTEXT), device="cuda")

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compiled(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        optim.zero_grad(set_to_none=True)

    for _ in range(4):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    best = 1e9
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - begin) / steps)
    print(
        json.dumps(
            {
                "name": f"train gpt2 bf16 B{batch} T{CONTEXT}",
                "ms": round(best * 1e3, 3),
                "tokens_per_s": round(batch * CONTEXT / best),
                "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    for size in [int(a) for a in sys.argv[1:]] or [64, 16]:
        measure(size)
