#!/usr/bin/env python3
"""Records what vLLM's own scheduler does with random workloads.

Usage: vllm_scheduler.py MODEL_DIR OUT.json [CASES], with vllm 0.32.0 installed. MODEL_DIR needs only the
config.json of any small decoder model; no weights are loaded and nothing is computed: the script
answers each step with made-up tokens. Two prompts get the same made-up tokens if and only if they
are equal, which is also how the simulated engine generates.

The file lists cases. A case has the engine's limits, the requests, and the steps. A step has what
came in before it, what the scheduler did (requests in scheduling order with the tokens computed
after the step, admissions with their cached tokens, preemptions, free blocks), what was aborted
while it ran, and the KV events it published. Block hashes are numbered in the order in which they
first appear, because every engine has its own hash.
"""
import json
import random
import sys
import zlib

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.config.kv_events import KVEventsConfig
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 16


class Capture:
    """Stands in for the event publisher."""

    def __init__(self):
        self.events = []

    def publish(self, batch):
        self.events.extend(batch.events)

    def shutdown(self):
        pass


def make_scheduler(model, blocks, budget, seqs):
    model_len = (blocks - 1) * BLOCK
    config = VllmConfig(
        model_config=ModelConfig(
            model=model, skip_tokenizer_init=True, dtype="float32", seed=0, max_model_len=model_len
        ),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=seqs,
            max_num_batched_tokens=budget,
            max_model_len=model_len,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
    )
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv = KVCacheConfig(
        num_blocks=blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        hash_block_size=BLOCK,
    )
    scheduler = Scheduler(
        vllm_config=config,
        kv_cache_config=kv,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        log_stats=True,
    )
    scheduler.kv_event_publisher = Capture()
    return scheduler


def answer(prompt, index):
    """The made-up token at an index of the answer to a prompt."""
    key = zlib.crc32(",".join(map(str, prompt)).encode())
    return 10_000_000_000 + key * 1000 + index


class Workload:
    """Random requests that share prefixes, repeat each other and follow up on answers."""

    def __init__(self, rng, count, room):
        self.rng, self.count, self.room = rng, count, room
        self.requests, self.prompts, self.outputs = [], [], []

    def draw(self, finished):
        rng, number = self.rng, len(self.requests)
        kind = rng.random()
        if kind < 0.15 and finished:
            parent = rng.choice(sorted(finished))
            extra = rng.randint(1, 30)
            spec = {"after": parent, "own": extra}
            prompt = self.prompts[parent] + self.outputs[parent]
        elif kind < 0.3 and number:
            twin = rng.randrange(number)
            spec = {"same": twin, "own": 0}
            prompt, extra = self.prompts[twin], 0
        else:
            family, shared, extra = rng.randrange(5), rng.randrange(0, 160), rng.randint(1, 90)
            spec = {"family": family, "shared": shared, "own": extra}
            prompt = [family * 100_000 + at for at in range(shared)]
        prompt = prompt + [(1000 + number) * 100_000 + at for at in range(extra)]
        output = rng.randint(1, 50)
        if len(prompt) + output > self.room:
            return None
        spec["output"] = output
        self.requests.append(spec)
        self.prompts.append(prompt)
        self.outputs.append([])
        return number


def run_case(model, seed):
    rng = random.Random(seed)
    blocks, budget, seqs = rng.choice([18, 26, 40, 64]), rng.choice([24, 64, 256]), rng.randint(2, 12)
    scheduler = make_scheduler(model, blocks, budget, seqs)
    hasher = get_request_block_hasher(BLOCK, sha256)
    load = Workload(rng, 45, (blocks - 1) * BLOCK)
    live, finished, steps, ordinals = {}, set(), [], {}
    to_come, queries, hits = load.count, 0, 0
    burst = rng.choice([0.2, 0.5, 1.5])

    def number_of(event_hash):
        return ordinals.setdefault(event_hash, len(ordinals))

    while to_come or live:
        arrive = []
        while to_come and (not live or rng.random() < burst / (burst + 1)):
            to_come -= 1
            number = load.draw(finished)
            if number is None:
                continue
            request = Request(
                request_id=str(number),
                prompt_token_ids=load.prompts[number],
                sampling_params=SamplingParams(max_tokens=load.requests[number]["output"], ignore_eos=True),
                pooling_params=None,
                block_hasher=hasher,
            )
            live[number] = request
            scheduler.add_request(request)
            arrive.append(number)
        if not live:
            continue
        before = {number: request.num_preemptions for number, request in live.items()}
        was_running = {request.request_id for request in scheduler.running}
        output = scheduler.schedule()
        scheduled = output.num_scheduled_tokens
        pre = sorted(n for n, request in live.items() if request.num_preemptions > before[n])
        step = {
            "arrive": arrive,
            "scheduled": [[int(i), live[int(i)].num_computed_tokens] for i in scheduled],
            "admitted": [
                [int(i), live[int(i)].num_computed_tokens - tokens]
                for i, tokens in scheduled.items()
                if i not in was_running
            ],
            "preempted": pre,
            "free": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        }
        abort = sorted(n for n in live if rng.random() < 0.001)
        for number in abort:
            scheduler.finish_requests(str(number), RequestStatus.FINISHED_ABORTED)
            del live[number]
        step["abort"] = abort
        sampled = []
        for i in scheduled:
            number = int(i)
            request = live.get(number)
            done = request is not None and request.num_computed_tokens >= request.num_tokens
            sampled.append([answer(load.prompts[number], len(load.outputs[number]))] if done else [])
            if done:
                load.outputs[number].append(sampled[-1][0])
        ids = list(scheduled)
        outputs = scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={i: at for at, i in enumerate(ids)},
                sampled_token_ids=sampled,
            ),
        )
        for stats in (part.scheduler_stats for part in outputs.values() if part.scheduler_stats):
            queries += stats.prefix_cache_stats.queries
            hits += stats.prefix_cache_stats.hits
        for number in [n for n, request in live.items() if request.is_finished()]:
            finished.add(number)
            del live[number]
        kv = []
        for event in scheduler.kv_event_publisher.events:
            if isinstance(event, BlockStored):
                parent = event.parent_block_hash
                kv.append(["stored", None if parent is None else number_of(parent)] + [number_of(h) for h in event.block_hashes])
            elif isinstance(event, BlockRemoved):
                kv.append(["removed"] + [number_of(h) for h in event.block_hashes])
            else:
                assert isinstance(event, AllBlocksCleared)
                kv.append(["cleared"])
        scheduler.kv_event_publisher.events = []
        step["kv"] = kv
        steps.append(step)
    return {
        "seed": seed,
        "blocks": blocks,
        "budget": budget,
        "seqs": seqs,
        "prefix_cache_queries": queries,
        "prefix_cache_hits": hits,
        "requests": load.requests,
        "steps": steps,
    }


def main():
    model, out = sys.argv[1:3]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 10
    init_none_hash(sha256)
    cases = [run_case(model, seed) for seed in range(count)]
    with open(out, "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n")
    steps = [step for case in cases for step in case["steps"]]
    print(
        f"{len(cases)} cases, {len(steps)} steps,",
        f"{sum(len(s['preempted']) for s in steps)} preemptions,",
        f"{sum(e[0] == 'removed' for s in steps for e in s['kv'])} evictions,",
        f"{sum(c > 0 for s in steps for _, c in s['admitted'])} hits,",
        f"{sum(len(s['abort']) for s in steps)} aborts",
    )


if __name__ == "__main__":
    main()
