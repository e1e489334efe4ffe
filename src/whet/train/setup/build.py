"""Builds what a config names: task, tokenizer, policy, engine, optimizer, algorithm."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from whet.config import EngineConfig, NewModel, OfflineConfig, OnlineConfig, TrainConfig
from whet.config.model_config import ModelConfig
from whet.config.objective import hides_tokens
from whet.distributed.allocators import set_up_allocator
from whet.distributed.sharding import is_spread, take_over
from whet.distributed.world import World
from whet.engines.denoising.denoising_engine import DenoisingEngine
from whet.engines.engine_protocol import Engine
from whet.engines.native.native_engine import NativeEngine
from whet.errors import UserError
from whet.models.adapters.lora import trained_tensors
from whet.models.adapters.quantized_base import dequantized_bytes
from whet.models.decoder.decoder import Decoder
from whet.models.download.model_hub import resolve_model
from whet.models.half_precision import halve
from whet.models.load import is_bidirectional, load_model, model_summary
from whet.models.model_tokenizer import model_tokenizer
from whet.models.protocol import CausalLM, Tokenizer
from whet.models.reward.reward_model import RewardModel
from whet.models.reward.settings import write_settings
from whet.models.storage.safetensors_files import fingerprint
from whet.models.storage.tensor_file import Whole, as_it_is
from whet.models.text.chat_settings import with_chat
from whet.records import Example
from whet.tasks.loading import guarded_task
from whet.tasks.protocol import HasNotes, Task
from whet.tasks.selection.curriculum import LevelledTask
from whet.tasks.selection.pass_rates import PassRateTask
from whet.tasks.stored import StoredTask
from whet.train.conversations import conversing_of, require_conversations
from whet.train.optimizers.optimizer import make_optimizer
from whet.train.setup.corpora import named_tokenizer, require_fitting_prompts, short_horizon_note, text_measure
from whet.train.setup.lora_setup import Adapter, attach_adapter
from whet.train.setup.new_model_shape import embedding_rows, new_decoder_config
from whet.train.setup.prompt_lengths import Side, fit_prompts, shared_prompts
from whet.train.setup.prompt_notes import chat_note_of_task, evaluation_lines, prompts_line, reward_lines
from whet.train.spreading.spread_models import held, sampling_engine
from whet.turns.conductor import Play
from whet.turns.conversing import Conversing

EXPORTED = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
VLLM_SEQUENCES = 256  # default number of parallel sequences


M = TypeVar("M", bound=CausalLM | RewardModel)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts(Generic[M]):
    """The built parts that all loops use."""

    task: Task
    evaluation: Mapping[str, Task]  # evaluation set → task whose held-out prompts are answered
    tokenizer: Tokenizer
    policy: M  # the model in training
    load: Callable[[Path], M]  # reads what `save_model` wrote, unless it is an adapter
    engine: Engine | None  # None for reward models, which do not generate
    optimizer: torch.optim.Optimizer
    origin: str  # fingerprint of the start weights
    dtype: torch.dtype  # of exported weights
    notes: tuple[str, ...]  # on the parts, for the user
    measure: Callable[[M], dict[str, float]] = lambda _: {}  # further metrics of every evaluation, of a policy
    adapter: Adapter | None = None  # of a LoRA run, which saves it in place of the model
    lengths: Callable[[], Sequence[tuple[int, int]]] | None = None  # tokens of a step's rows; None: of prompts
    conversing: Conversing | None = None  # plays the tasks that have environments; None without an engine
    play: Callable[[Sequence[Example]], Play] | None = None  # conversations about examples of `task`, if it has some
    whole: Whole = as_it_is  # of weights that are spread over ranks: then all of them save, and one names a directory

    def save_model(self, directory: Path | None) -> None:
        """Saves model and tokenizer as one loadable directory, each weight in the dtype in which it is trained."""
        self._save(directory, None)

    def export_model(self, directory: Path | None) -> None:
        """`save_model` in the dtype of exported weights; an adapter is in fp32."""
        self._save(directory, self.dtype)

    def _save(self, directory: Path | None, dtype: torch.dtype | None) -> None:
        if self.adapter is not None:
            self.adapter.save(self._module, directory, self.whole)
            if isinstance(self.policy, RewardModel) and directory is not None:
                write_settings(directory, self.policy.settings)
        elif isinstance(self.policy, Decoder | RewardModel):
            self.policy.save(directory, dtype, self.whole)
        else:
            assert directory is not None
            self.policy.save(directory, dtype)
        if directory is not None:
            self.tokenizer.save(directory)

    @torch.no_grad()
    def restore_model(self, directory: Path) -> None:
        """Gives the policy the weights that `save_model` or `export_model` wrote."""
        if self.adapter is None:
            saved, mine = self.load(directory).state_dict(), self.policy.state_dict()
        else:
            saved, mine = dict(self.adapter.read(self._module, directory)), trained_tensors(self._module)
        if {n: t.shape for n, t in saved.items()} != {n: t.shape for n, t in mine.items()}:
            raise UserError(f"{directory}: the saved model is another than the run's config describes")
        for name, tensor in mine.items():
            take_over(tensor, saved[name])

    @property
    def _module(self) -> torch.nn.Module:
        assert isinstance(self.policy, torch.nn.Module)
        return self.policy

    @property
    def frozen_base(self) -> tuple[Path, Decoder] | None:
        """The directory of a LoRA run's base and the policy that holds its weights, if others can share them.

        A quantised base has other weights than those that other adapters were trained on, and of a base that is spread
        over ranks each has a part alone.
        """
        policy = self.policy
        if self.adapter is None or not isinstance(policy, Decoder) or dequantized_bytes(policy):
            return None
        if any(map(is_spread, policy.parameters())):
            return None
        return self.adapter.base, policy

    @property
    def saved(self) -> list[Tensor]:
        """The weights that a checkpoint holds."""
        return list(self.policy.parameters() if self.adapter is None else self.adapter.tensors(self._module).values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """What a run starts from."""

    task: Task
    tokenizer: Tokenizer
    policy: CausalLM
    dtype: torch.dtype  # of exported weights
    notes: tuple[str, ...]


def build_parts(config: TrainConfig, world: World) -> Parts[CausalLM]:
    """All parts of a run, on this process's device."""
    start = start_model(config, world)
    origin = fingerprint(start.policy)
    assert isinstance(start.policy, torch.nn.Module)
    adapter = attach_adapter(config.model, start.policy, world.device, seed=config.seed)
    halve_master_weights(config, start.policy, world.device)
    policy = held(start.policy, world)
    policy.gradient_checkpointing = config.model.gradient_checkpointing
    if isinstance(policy, Decoder):
        policy.model.compiled = config.model.compile
    used, max_tokens, key = _sampled(config)
    task, lengths = fit_prompts(
        start.task, start.tokenizer, context=policy.context, max_tokens=max_tokens, key=key, used=used
    )
    task = filtered_task(config, task)
    evaluation, of_sets = _evaluation_tasks(config, task, start.tokenizer, policy.context)
    require_conversations(config, task)
    require_fitting_prompts(config, task, evaluation.values(), start.tokenizer, policy.context)
    trained_on = () if isinstance(config, OfflineConfig) and config.data is not None else (prompts_line(config, task),)
    conversing = conversing_of(config, start.tokenizer, context=policy.context)
    return Parts(
        task=task,
        evaluation=evaluation,
        tokenizer=start.tokenizer,
        policy=policy,
        load=partial(
            load_model,
            bidirectional=_hides_tokens(config),
            keep_bf16=keeps_bf16(config, world.device),
            mapped=world.sharding.is_sharded,
        ),
        engine=build_engine(config.trainer_engine, policy, start.tokenizer, world),
        optimizer=make_optimizer(policy, config.optimizer),
        origin=origin,
        dtype=start.dtype,
        notes=(
            *(*trained_on, *evaluation_lines(config, evaluation), *reward_lines(config)),
            *filter(None, [short_horizon_note(config, task, start.tokenizer, policy.context)]),
            *(*start.notes, *lengths, *of_sets, *(task.notes() if isinstance(task, HasNotes) else ())),
        ),
        measure=text_measure(config, task, start.tokenizer, policy, world),
        conversing=conversing,
        play=conversing.of(task),
        whole=world.sharding.whole,
        adapter=adapter,
    )


def _sampled(config: TrainConfig) -> tuple[list[Side], int, str]:
    """The sides of the task whose prompts a run reads, the longest completion that it asks for, and the key of that."""
    limits: dict[Side, tuple[int, str]] = {}
    if isinstance(config, OnlineConfig):
        limits["training"] = config.rollout.max_tokens, "rollout.max_tokens"
    elif isinstance(config, OfflineConfig) and config.data is None:
        limits["training"] = 1, ""  # learned, not sampled
    if config.eval.every_steps:
        limits["held-out"] = config.eval.max_tokens, "eval.max_tokens"
    longest = max((most for most, _ in limits.values()), default=1)
    return list(limits), longest, " and ".join(key for most, key in limits.values() if most == longest)


def start_model(config: TrainConfig, world: World) -> Start:
    """The task, and the tokenizer and language model that the run starts from."""
    engine = config.trainer_engine
    set_up_allocator(world.device, expandable=engine.name != "vllm" or bool(engine.url))
    task, hides = training_task(config), _hides_tokens(config)
    if config.model.new is not None:
        named = named_tokenizer(config.model.new.tokenizer, task, masks=hides)
        tokenizer, note = chat_tokenizer(config.model, named)
        if not isinstance(config, OfflineConfig):
            _require_tokens_alone(config.model.new, tokenizer.vocab_size)
        policy: CausalLM = random_policy(config.model.new, tokenizer, config.seed, causal=not hides)
    else:
        directory = resolve_model(config.model.path)
        # Before the tokenizer: its errors on bad directories are clearer.
        kept, mapped = keeps_bf16(config, world.device), world.sharding.is_sharded
        policy = load_model(directory, bidirectional=hides, keep_bf16=kept, mapped=mapped)
        tokenizer, note = chat_tokenizer(config.model, model_tokenizer(directory))
    notes = tuple(f"note: {text}" for text in (note, chat_note_of_task(config, task, tokenizer)) if text)
    return Start(task=task, tokenizer=tokenizer, policy=policy, dtype=export_dtype(config.model), notes=notes)


def keeps_bf16(config: TrainConfig, device: torch.device) -> bool:
    """Whether matrices that are stored in bf16 are not read in fp32: they are frozen, or trained in bf16."""
    return device.type == "cuda" and (config.model.lora is not None or config.optimizer.master_weights != "fp32")


def halve_master_weights(config: TrainConfig, trunk: CausalLM, device: torch.device) -> None:
    """Trained matrices in bf16, if the optimizer keeps their fp32 values elsewhere or rounds its updates to bf16."""
    where = config.optimizer.master_weights
    if where == "fp32":
        return
    if device.type != "cuda":
        raise UserError(
            f"optimizer.master_weights={where} is for training on a GPU and this is a CPU, whose products are in fp32: "
            "leave it out"
        )
    halve(trunk, trained=True)


def _hides_tokens(config: TrainConfig) -> bool:
    """Whether the run trains a bidirectional model."""
    return isinstance(config, OfflineConfig) and hides_tokens(config.objective)


def training_task(config: TrainConfig) -> Task:
    """The task of a config, with its curriculum if it has one."""
    name, options = config.task.name, config.task.options
    if not isinstance(config, OnlineConfig) or config.curriculum is None:
        return guarded_task(name, options)
    return LevelledTask(name, options, **config.curriculum.model_dump())


def filtered_task(config: TrainConfig, task: Task) -> Task:
    """The task with its filter by pass rate, if it has one."""
    if not isinstance(config, OnlineConfig) or config.rollout.pass_rate is None:
        return task
    if not isinstance(task, StoredTask):
        raise UserError(
            f"rollout.pass_rate skips prompts of a file, and task {config.task.name} makes its prompts: leave it out, "
            "or use algorithm.dynamic_sampling=drop_zero_variance, which drops groups after they are sampled"
        )
    return PassRateTask(task, **config.rollout.pass_rate.model_dump())


def _evaluation_tasks(
    config: TrainConfig, training: Task, tokenizer: Tokenizer, context: int
) -> tuple[dict[str, Task], list[str]]:
    """The task of each evaluation set, with prompts that fit, and notes for the user."""
    if not config.eval.every_steps:
        return {}, []
    found: dict[str, Task] = {}
    notes: list[str] = []
    for name, settings in config.evaluation_tasks.items():
        if settings == config.task:
            found[name] = training
            continue
        task = guarded_task(settings.name, settings.options)
        most = config.eval.max_tokens
        found[name], lengths = fit_prompts(
            task, tokenizer, context=context, max_tokens=most, key="eval.max_tokens", used=["held-out"]
        )
        where = f"evaluation set {name}" if name else "evaluation"
        # The rows of offline runs are compared by their trainer.
        leaked = shared_prompts(training, found[name]) if isinstance(config, OnlineConfig) else ""
        notes += [f"{where}: {text}" for text in (*lengths, leaked) if text]
    return found, notes


def chat_tokenizer(model: ModelConfig, tokenizer: Tokenizer) -> tuple[Tokenizer, str]:
    """The tokenizer with the chat template and system prompt of the recipe, and a note for the user, else empty."""
    return with_chat(tokenizer, template=model.chat_template, system_prompt=model.system_prompt)


def export_dtype(model: ModelConfig) -> torch.dtype:
    """The dtype of the best model: as the start model was stored, unless `model.dtype` says otherwise."""
    if model.dtype != "auto":
        return EXPORTED[model.dtype]
    stored = None if model.new is not None else model_summary(resolve_model(model.path))["dtype"]
    return {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(str(stored), torch.float32)


def require_family(model: ModelConfig) -> None:
    """Refuses a new model of a family that no table has, or with options of another, before anything is trained."""
    if model.new is not None:
        new_decoder_config(model.new, vocab_size=1)


def build_engine(config: EngineConfig, policy: CausalLM, tokenizer: Tokenizer, world: World) -> Engine:
    if is_bidirectional(policy):
        if config.name != "native":
            raise UserError(f"engine.name is {config.name}, which samples from no bidirectional model: use native")
        denoising = partial(DenoisingEngine, tokenizer=tokenizer, device=world.device)
        return sampling_engine(policy, world, torch.float32, denoising)
    if config.name == "native":
        dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[config.precision]
        most = config.max_sequences
        native = partial(NativeEngine, tokenizer=tokenizer, max_sequences=most, device=world.device, dtype=dtype)
        return sampling_engine(policy, world, dtype, native)
    if world.size > 1:
        raise UserError(f"engine.name=vllm follows one process and there are {world.size}: use engine.name=native")
    most = config.max_sequences or VLLM_SEQUENCES
    if not config.url:
        from whet.engines.vllm.vllm_engine import VllmEngine

        return VllmEngine(policy, tokenizer, max_sequences=most, memory_share=config.memory_share)
    from whet.engines.http.transport import Connection
    from whet.engines.vllm.server import VllmServerEngine

    return VllmServerEngine(
        config.url,
        policy,
        tokenizer,
        connection=Connection(concurrency=most),
        weights_directory=Path(config.weights_directory) if config.weights_directory else None,
    )


def place(policy: CausalLM, device: torch.device) -> CausalLM:
    assert isinstance(policy, torch.nn.Module)
    return policy.to(device)


def random_policy(new: NewModel, tokenizer: Tokenizer, seed: int, *, causal: bool = True) -> Decoder:
    """A new model with random weights."""
    config = new_decoder_config(new, tokenizer.vocab_size, causal=causal)
    return Decoder(config, family=new.family, seed=seed, source={"eos_token_id": tokenizer.eos})


def _require_tokens_alone(new: NewModel, vocab_size: int) -> None:
    """Refuses ids that are no tokens in a model whose samples are learned from: it would sample them."""
    rows = embedding_rows(new, vocab_size)
    if rows != vocab_size:
        raise UserError(
            f"model.new.vocab_multiple {new.vocab_multiple} gives {rows} ids and there are {vocab_size} tokens, so "
            "rollouts would sample ids that are none: leave it out"
        )
