"""The step of bench/torch_gpt2.py on the CPU in f32, for bench/record-training. Prints a JSON object.

usage: torch_gpt2_cpu.py [batch [context [steps]]]        default: 4 64 3
"""
import json
import resource
import sys
import time

import torch

from torch_gpt2 import Gpt


def main():
    batch, context, steps = [int(a) for a in sys.argv[1:4]] + [4, 64, 3][len(sys.argv) - 1 :]
    torch.manual_seed(1)
    model = Gpt()
    optim = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    ids = torch.randint(0, 50257, (batch, context))
    targets = torch.randint(0, 50257, (batch, context))

    def step():
        loss = model(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        optim.zero_grad(set_to_none=True)

    step()
    best = float("inf")
    for _ in range(steps):
        start = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - start)
    print(json.dumps({
        "name": f"train gpt2 f32 B{batch} T{context}",
        "ms": round(1e3 * best, 3),
        "tokens_per_s": round(batch * context / best, 1),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "threads": torch.get_num_threads(),
    }))


if __name__ == "__main__":
    main()
