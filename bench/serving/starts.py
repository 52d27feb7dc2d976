"""The engines, offline: what starts one, and what it answers.

An Engine has generate(prompts, new): the tokens of each answer; forced(prompt): the log-probability
of each of its tokens but the first; forget(): of what its prefix cache has; and facts.
"""

import importlib.metadata
import os

LENGTH, BATCHED, REQUESTS, KV_BYTES = 8192, 2048, 64, 4 << 30
SIZES = [1, 2, 4, 8, 16, 24, 32, 48, 64]  # of graphs


class Vllm:
    """vllm.LLM."""

    attentions = {
        "attnd": "CUSTOM", "fa3": "FLASH_ATTN", "flashinfer": "FLASHINFER", "triton": "TRITON_ATTN",
        "reference": "CUSTOM",
    }  # fmt: skip
    environment = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1", "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }  # fmt: skip

    def __init__(self, model, attention, given):
        os.environ["VLLM_PLUGINS"] = "attnd" if attention == "attnd" else "none"
        import vllm

        if attention == "reference":
            from judge import register

            register()
        mode = {
            "full": {"cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_capture_sizes": SIZES},
            "pieces": {"cudagraph_mode": "PIECEWISE", "cudagraph_capture_sizes": SIZES},
        }.get(given.graphs)
        self._vllm, self.llm = vllm, vllm.LLM(
            model=str(model), skip_tokenizer_init=True, dtype="float16", seed=0,
            enforce_eager=mode is None, block_size=given.page_size or 16, max_model_len=LENGTH,
            max_num_batched_tokens=BATCHED, max_num_seqs=REQUESTS, enable_prefix_caching=True,
            kv_cache_memory_bytes=KV_BYTES, kv_cache_dtype=given.kv_dtype,
            gpu_memory_utilization=0.5,
            attention_config={"backend": self.attentions[attention]},
            **({"compilation_config": mode} if mode else {}),
        )  # fmt: skip
        config = self.llm.llm_engine.vllm_config
        self.facts = {
            "graphs": str(config.compilation_config.cudagraph_mode),
            "async_scheduling": config.scheduler_config.async_scheduling,
        }

    def _ask(self, prompts, **sampling):
        params = self._vllm.SamplingParams(
            temperature=0.0, ignore_eos=True, detokenize=False, **sampling
        )
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        return self.llm.generate(given, params, use_tqdm=False)

    def generate(self, prompts, new):
        return [list(x.outputs[0].token_ids) for x in self._ask(prompts, max_tokens=new)]

    def forced(self, prompt):
        (answer,) = self._ask([prompt], max_tokens=1, prompt_logprobs=1)
        return [at[token].logprob for token, at in zip(prompt[1:], answer.prompt_logprobs[1:])]

    def forget(self):
        self.llm.reset_prefix_cache()

    def close(self):
        self.llm.llm_engine.engine_core.shutdown()


class Sglang:
    """sglang.Engine."""

    attentions = {"attnd": "attnd", "fa3": "fa3", "flashinfer": "flashinfer", "triton": "triton"}
    environment = {"SGLANG_IS_FLASHINFER_AVAILABLE": "false", "SGLANG_USE_SGL_FA3_KERNEL": "true"}

    def __init__(self, model, attention, given):
        os.environ["SGLANG_PLUGINS"] = "attnd" if attention == "attnd" else "none"
        import sglang

        self.llm = sglang.Engine(
            model_path=str(model), skip_tokenizer_init=True, dtype="float16",
            attention_backend=self.attentions[attention], sampling_backend="pytorch",
            page_size=given.page_size or 1, chunked_prefill_size=BATCHED,
            max_prefill_tokens=BATCHED, max_running_requests=REQUESTS, context_length=LENGTH,
            max_total_tokens=LENGTH * 32, mem_fraction_static=0.5, random_seed=0,
            kv_cache_dtype=given.kv_dtype, disable_cuda_graph=given.graphs == "off",
            cuda_graph_max_bs_decode=REQUESTS, disable_hybrid_swa_memory=True,
            skip_server_warmup=True,
        )  # fmt: skip
        self.facts = {"graphs": given.graphs}

    def _ask(self, prompts, new, **options):
        sampling = {"temperature": 0.0, "max_new_tokens": new, "ignore_eos": True}
        return self.llm.generate(input_ids=prompts, sampling_params=sampling, **options)

    def generate(self, prompts, new):
        return [list(x["output_ids"])[-new:] for x in self._ask(prompts, new)]

    def forced(self, prompt):
        (answer,) = self._ask([prompt], 1, return_logprob=True, logprob_start_len=0)
        return [x[0] for x in answer["meta_info"]["input_token_logprobs"][1:]]

    def forget(self):
        self.llm.flush_cache()

    def close(self):
        self.llm.shutdown()


ENGINES = {"vllm": Vllm, "sglang": Sglang}


def start(name, model, attention, given):
    """An engine, and in its facts which releases it is made of."""
    kind = ENGINES[name]
    for variable, value in {"HF_HUB_OFFLINE": "1", **kind.environment}.items():
        os.environ.setdefault(variable, value)
    engine = kind(model, attention, given)
    for package in (name, "torch"):
        engine.facts[package] = importlib.metadata.version(package)
    return engine
