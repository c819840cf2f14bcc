# SPDX-License-Identifier: Apache-2.0
"""A relay that harms connections on purpose: the network faults of the tests, from a seed.

All relays of a process share one thread (asyncio). Each stands for one address and forwards to `target`, which may
change when a program is restarted. What happens to the n-th connection is a Fault, chosen by `plan(n)`; Seeded chooses
by (seed, name, n) alone, so that a seed makes the same faults in each run, whatever the timing. cut() and hole() harm
those that stand; calm() ends all harm, and stir() begins it again.
"""
import asyncio
import collections
import random
import socket
import struct
import threading

OUT, BACK = 0, 1  # towards the target, and from it
CHUNK, QUEUE = 65536, 64


class Fault:
    """What befalls one connection, in direction `way` from byte `at` on.

    none      forwarded as it comes
    delay     each chunk arrives `seconds` late; throughput is kept
    throttle  `rate` bytes a second
    reset     at byte `at` both ends are reset
    close     at byte `at` both ends are closed in order
    hole      nothing is forwarded any more; both ends stay open ("both": each way)
    corrupt   bit `bit` of the byte `at` is flipped
    half-dead accepted, read, never answered; the target hears nothing of it
    """

    def __init__(self, kind="none", way=BACK, at=0, both=False, seconds=0.0, rate=0, bit=0):
        self.kind, self.way, self.at, self.both = kind, way, at, both
        self.seconds, self.rate, self.bit = seconds, rate, bit

    def __repr__(self):
        where = f" {('out', 'back')[self.way]} at {self.at}" if self.kind in ("reset", "close", "hole", "corrupt") else ""
        return self.kind + where + (" both ways" if self.both else "")


class Seeded:
    """plan(n) of a relay: `share` of its connections have a fault of one of `kinds`, somewhere in the first bytes."""
    KINDS = ("delay", "throttle", "reset", "close", "hole", "corrupt", "half-dead")

    def __init__(self, seed, name, share=0.5, kinds=KINDS, most_bytes=4 << 20):
        self.seed, self.name, self.share, self.kinds, self.most_bytes = seed, name, share, kinds, most_bytes

    def __call__(self, n):
        r = random.Random(f"{self.seed}/{self.name}/{n}")
        if r.random() >= self.share:
            return Fault()
        way = r.choice((OUT, BACK, BACK))
        # as often in the first hundred bytes as in the first hundred thousand: greetings, headers, rows, values
        at = int(10 ** r.uniform(0, len(str(self.most_bytes)) - 1)) if way == BACK else r.randrange(2000)
        return Fault(r.choice(self.kinds), way, at, r.random() < 0.5, r.uniform(0.002, 0.2),
                     int(10 ** r.uniform(6, 7.5)), r.randrange(8))


class _Connection:
    def __init__(self, relay, near, number):
        self.relay, self.near, self.far, self.number = relay, near, None, number
        self.fault = relay.plan(number) if relay.plan and not relay.is_calm else Fault()
        self.hole = [False, False]
        self.touched = self.fault.kind in ("delay", "throttle")
        self.tasks = []

    async def run(self):
        loop = asyncio.get_running_loop()
        if self.fault.kind == "half-dead":
            self.touched = True
            while await loop.sock_recv(self.near, CHUNK):
                pass
            return self.end(False)
        host, port = self.relay.target.rsplit(":", 1)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.far = socket.socket(family, socket.SOCK_STREAM)
        self.far.setblocking(False)
        try:
            await asyncio.wait_for(loop.sock_connect(self.far, (host.strip("[]"), int(port))), 5)
        except (OSError, asyncio.TimeoutError):
            return self.end(True)
        for s in (self.near, self.far):
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for way, source, sink in ((OUT, self.near, self.far), (BACK, self.far, self.near)):
            queue = asyncio.Queue(QUEUE)
            self.tasks += [loop.create_task(self.take(source, queue, way)), loop.create_task(self.give(sink, queue, way))]

    async def take(self, source, queue, way):
        loop, at = asyncio.get_running_loop(), 0
        try:
            while True:
                chunk = await loop.sock_recv(source, CHUNK)
                while self.hole[way]:
                    await asyncio.sleep(0.02)
                late = self.fault.seconds if self.fault.kind == "delay" else 0
                if not chunk:
                    await queue.put((loop.time() + late, b"", True))
                    return
                if self.relay.watch and way == BACK:
                    chunk = self.relay.watch(self.relay, chunk)
                chunk, last = self.harm(chunk, at, way)
                at += len(chunk)
                await queue.put((loop.time() + late, chunk, False))
                if last:
                    await last()
        except OSError:
            self.end(True)

    def harm(self, chunk, at, way):
        """The chunk as it goes on, and what is to come after it, if anything."""
        fault = self.fault
        here = fault.at - at
        if way != fault.way or not 0 <= here < len(chunk):
            return chunk, None
        if fault.kind == "corrupt":
            self.touched = True
            return chunk[:here] + bytes([chunk[here] ^ 1 << fault.bit]) + chunk[here + 1:], None
        if fault.kind in ("reset", "close"):
            return chunk[:here], self.end_soon
        if fault.kind == "hole":
            self.touched = True
            return chunk[:here], self.fall
        return chunk, None

    async def end_soon(self):
        self.touched = True
        await asyncio.sleep(0.01)  # so that the bytes before are seen first, most times
        self.end(self.fault.kind == "reset")

    async def fall(self):
        self.hole[1 - self.fault.way] = self.fault.both
        while True:
            await asyncio.sleep(3600)

    async def give(self, sink, queue, way):
        loop = asyncio.get_running_loop()
        try:
            while True:
                due, chunk, is_end = await queue.get()
                if due > loop.time():
                    await asyncio.sleep(due - loop.time())
                while self.hole[way]:
                    await asyncio.sleep(0.02)
                if is_end:
                    sink.shutdown(socket.SHUT_WR)
                    return
                for i in range(0, len(chunk), 8192 if self.fault.kind == "throttle" else CHUNK):
                    part = chunk[i:i + (8192 if self.fault.kind == "throttle" else CHUNK)]
                    await loop.sock_sendall(sink, part)
                    if self.fault.kind == "throttle":
                        await asyncio.sleep(len(part) / self.fault.rate)
        except OSError:
            self.end(True)

    def end(self, reset):
        if self in self.relay.connections:
            self.relay.connections.remove(self)
        self.relay.harmed[self.fault.kind] += self.touched
        self.touched = False
        me = asyncio.current_task()
        for s in (self.near, self.far):
            if s is None or s.fileno() < 0:
                continue
            asyncio.get_running_loop().remove_reader(s)
            asyncio.get_running_loop().remove_writer(s)
            if reset:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            s.close()
        for task in self.tasks:
            if task is not me:
                task.cancel()


_loop, _lock = None, threading.Lock()  # the one loop of all relays; it ends with the process


def _call(function):
    """function() on the loop's thread, from any thread."""
    global _loop
    if asyncio._get_running_loop() is not None:
        return function()
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, daemon=True).start()

    async def run():
        return function()
    return asyncio.run_coroutine_threadsafe(run(), _loop).result(10)


class Relay:
    """`watch(relay, chunk)` sees what comes back before it goes on, returns what goes on, and may call close()."""

    def __init__(self, target=None, plan=None, watch=None):
        self.target, self.plan, self.watch = target, plan, watch
        self.connections, self.count, self.is_calm = [], 0, False
        self.harmed = collections.Counter()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.listener.setblocking(False)
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.accepting = _call(lambda: asyncio.get_running_loop().create_task(self._accept()))

    async def _accept(self):
        loop = asyncio.get_running_loop()
        while True:
            try:
                near, _ = await loop.sock_accept(self.listener)
            except OSError:
                return
            near.setblocking(False)
            connection = _Connection(self, near, self.count)
            self.count += 1
            self.connections.append(connection)
            if self.target is None:
                connection.end(True)
            else:
                connection.tasks.append(loop.create_task(self._guard(connection)))

    @staticmethod
    async def _guard(connection):
        try:
            await connection.run()
        except OSError:
            connection.end(True)

    def cut(self):
        """Resets all connections that stand."""
        _call(lambda: [c.end(True) for c in list(self.connections)])

    def hole(self, on=True, later=True):
        """All connections stay open and forward nothing, until hole(False); without `later`, those that stand."""
        def fall():
            if later:
                self.plan, self.kept = (lambda n: Fault("half-dead")) if on else self.kept, self.plan if on else None
            for c in list(self.connections):
                c.hole = [on, on]
                c.touched = c.touched or on
                if not on:
                    c.end(True)
        _call(fall)

    def stir(self):
        """From now on by the plan, those that stand included: they are reset."""
        self.is_calm = False
        self.cut()

    def calm(self):
        """No more harm: what is under a fault is reset, later connections are clean."""
        def clean():
            self.is_calm = True
            for c in list(self.connections):
                if c.fault.kind != "none" or any(c.hole):
                    c.end(True)
        _call(clean)

    def close(self):
        def end():
            if self.listener.fileno() < 0:
                return
            self.accepting.cancel()
            asyncio.get_running_loop().remove_reader(self.listener)
            self.listener.close()
            for c in list(self.connections):
                c.end(True)
        _call(end)
