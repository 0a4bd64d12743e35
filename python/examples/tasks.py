"""Saxpy and a matrix product on a virtual accelerator, synchronous and as futures, with the results
checked: python tasks.py ACCELERATOR KERNELS.ptx"""

from __future__ import annotations

import sys
from array import array
from concurrent.futures import Future, as_completed

from weft_tasks import Accelerator, In, InOut, Out, Refused, Result, f32, u32

N, SIDE, PRODUCTS = 1000, 48, 8


def main(name: str, kernels: str) -> None:
    with Accelerator(name) as accelerator, open(kernels, "rb") as file:
        module = accelerator.load(file.read())

        # Synchronous.
        x, y = array("f", range(N)), array("f", [1.0] * N)
        grid = (N + 255) // 256
        args = [InOut(y), In(x), f32(2.0), u32(N)]
        result = accelerator.run(module, "saxpy", grid=grid, block=256, args=args)
        assert list(y) == [2.0 * i + 1.0 for i in range(N)]
        print(f"saxpy: {result.used_ns} ns on {result.device}")

        # Futures: all are submitted before the first one is waited for.
        identity = array("f", [float(i // SIDE == i % SIDE) for i in range(SIDE * SIDE)])
        blocks = (SIDE + 15) // 16
        products: dict[Future[Result], tuple[array[float], array[float]]] = {}
        for round in range(PRODUCTS):
            a = array("f", [(i * 7 + round) % 13 for i in range(SIDE * SIDE)])
            c = array("f", bytes(4 * SIDE * SIDE))
            future = accelerator.submit(
                module,
                "matmul",
                grid=(blocks, blocks),
                block=(16, 16),
                args=[Out(c), In(a), In(identity), u32(SIDE)],
            )
            products[future] = (a, c)
        for done in as_completed(products):
            done.result()
            a, c = products[done]
            assert a == c
        print(f"matmul: {PRODUCTS} products by the identity")

        # What cannot run is refused before it does.
        try:
            accelerator.submit(module, "sakspy")
        except Refused as refusal:
            print(f"refused: {refusal}")
        else:
            raise AssertionError("an unknown kernel was not refused")
    print("ok")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: tasks.py ACCELERATOR KERNELS.ptx")
    main(*sys.argv[1:])
