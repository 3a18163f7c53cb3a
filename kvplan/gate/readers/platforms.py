"""Kubernetes objects of serving platforms, whose launch is not a plain pod template."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kvplan.gate.accelerators import count_of, from_instance, from_pod, labels_of, memory_limit
from kvplan.gate.flags import FlagParser, ParsedFlags
from kvplan.gate.readers.containers import (
    ConfigMaps,
    environment,
    expander,
    read_container,
    split_words,
    words_of,
)
from kvplan.gate.readers.settings import take_settings
from kvplan.gate.word_tables import KSERVE_OPTIONS

if TYPE_CHECKING:
    from kvplan.gate.reading import Reading, Surroundings
    from kvplan.gate.taint import Word
    from kvplan.gate.yaml_nodes import Node


def read_platform(reading: Reading, doc: Node, kind: str, around: Surroundings, maps: ConfigMaps) -> bool:  # noqa: PLR0911  one branch a kind
    """Record the launches of a platform's object; false when the kind is none that is read here."""
    match kind:
        case "LLMInferenceService" | "LLMInferenceServiceConfig":
            return _llm_inference_service(reading, doc, around, maps)
        case "InferenceService":
            return _inference_service(reading, doc, around, maps)
        case "RayService" | "RayCluster" | "RayJob":
            return _ray(reading, doc, around)
        case "VLLMRuntime":
            from kvplan.gate.readers.values import read_model_spec, values_lookup

            spec = doc.get("spec")
            if spec is not None:
                read_model_spec(reading, spec, "production-stack VLLMRuntime", values_lookup(reading, doc))
            return True
        case "Model" if "kubeai" in (doc.text_of("apiVersion") or ""):
            from kvplan.gate.readers.values import read_kubeai_model

            spec = doc.get("spec")
            if spec is not None and spec.text_of("engine") == "VLLM":
                name = doc.text_of("metadata", "name")
                read_kubeai_model(reading, spec, "kubeai", name, (spec.line, spec.column))
            return True
        case "Workspace" | "InferenceSet" if "kaito" in (doc.text_of("apiVersion") or ""):
            return _kaito(reading, doc, around)
        case "DynamoGraphDeployment":
            return _dynamo(reading, doc, around, maps)
    return False


def _parallelism(section: Node | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, name in (
        ("tensor", "tensor_parallel_size"),
        ("pipeline", "pipeline_parallel_size"),
        ("data", "data_parallel_size"),
    ):
        text = section.text_of("parallelism", key) if section is not None else None
        if text is not None and text.isascii() and text.isdigit() and len(text) < 5:
            found[name] = int(text)
    if section is not None and section.text_of("parallelism", "expert") == "true":
        found["enable_expert_parallel"] = True
    return found


def _llm_inference_service(reading: Reading, doc: Node, around: Surroundings, maps: ConfigMaps) -> bool:
    spec = doc.get("spec")
    if spec is None:
        return True
    uri = spec.text_of("model", "uri")
    model = uri.removeprefix("hf://") if uri and uri.startswith("hf://") else spec.text_of("model", "name")
    for section in (spec, spec.get("prefill")):
        template = section.get("template") if section is not None else None
        if section is None or (template is None and section.get("model") is None):
            continue
        containers = template.list_of("containers") if template is not None else []
        main = next(
            (c for c in containers if c.text_of("name") == "main"), containers[0] if containers else None
        )
        extra = _parallelism(section) | (_speculator(spec.get("speculator")) if section is spec else {})
        inner = around.but(model=model, extra_flags=extra, gpu=from_pod(template) if template else None)
        if main is None:
            reading.record(_offloading(section, ParsedFlags()), (section.key_line("model"), 1), inner)
        else:
            _kserve_main(reading, main, inner, maps, section)
    return True


def _speculator(node: Node | None) -> dict[str, Any]:
    """KServe hands its speculator to the engine that decodes, as `--speculative-config`."""
    if node is None:
        return {}
    found: dict[str, Any] = {}
    uri = node.text_of("model", "uri")
    if uri is not None:
        found["model"] = uri.removeprefix("hf://")
    config = node.get("config")
    for key, _, value in config.entries() if config is not None else ():
        text = value.text if value.kind == "scalar" else ""
        found[key] = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else text
    return {"speculative_config": found} if found else {}


def _offloading(section: Node, result: ParsedFlags) -> ParsedFlags:
    """What KServe makes of `kvCacheOffloading` is its own affair: said, not guessed."""
    if section.get("kvCacheOffloading") is not None and "kv_transfer_config" not in result.flags:
        result.unresolved["kvCacheOffloading"] = None
        result.unresolved_flags["kv_transfer_config"] = ("kvCacheOffloading",)
    return result


def _pods_of(section: Node) -> int:
    """Pods of one engine: with a `worker`, one for each node that the parallelism takes."""
    if section.get("worker") is None:
        return 1
    sizes = [
        int(text) if (text := section.text_of("parallelism", key) or "").isascii() and text.isdigit() else 0
        for key in ("data", "dataLocal", "pipeline")
    ]
    data, local, pipeline = (min(size, 10_000) for size in sizes)
    return max(1, pipeline or (data // local if local else 1))


def _kserve_main(reading: Reading, main: Node, around: Surroundings, maps: ConfigMaps, section: Node) -> None:
    count, mig = count_of(main.get("resources"))
    count = count * _pods_of(section) if count is not None else None
    inner = around.but(
        num_gpus=count,
        mig=mig,
        image=main.text_of("image"),
        container_memory_bytes=memory_limit(main.get("resources")),
    )
    if main.get("command") is not None and read_container(reading, main, inner, maps):
        return
    env = environment(reading, main, maps, {})
    words = words_of(main.get("args"), expander(reading, env))
    line = main.key_line("args") if main.get("args") else main.line
    for item in main.list_of("env"):
        if item.text_of("name") == "VLLM_ADDITIONAL_ARGS":
            value = item.get("value")
            split = split_words(env.get("VLLM_ADDITIONAL_ARGS", ""), value)
            if split is None:
                reading.miss(item.line, "VLLM_ADDITIONAL_ARGS cannot be split into words")
            words += split or []
            line = item.line
    parser = FlagParser(reading.taint, reading.parsed(reading.version_of(inner.image)), reading.load_config)
    parsed = _offloading(section, parser.parse(words, positional_model=False))
    reading.record(parsed, (line, 1), inner.but(env=env))


def _inference_service(reading: Reading, doc: Node, around: Surroundings, maps: ConfigMaps) -> bool:
    predictor = doc.get("spec", "predictor")
    model = predictor.get("model") if predictor is not None else None
    if predictor is None or model is None:
        return False
    runtime = f"{model.text_of('modelFormat', 'name')} {model.text_of('runtime')}".lower()
    if not re.search(r"huggingface|vllm", runtime):
        return True
    count, mig = count_of(model.get("resources"))
    env = environment(reading, model, maps, {})
    words = words_of(model.get("args"), expander(reading, env))
    if any(word.text in {"--backend=huggingface", "--backend=hf"} for word in words):
        return True
    words = [_model_id(word) for word in words]
    storage = model.text_of("storageUri")
    inner = around.but(
        gpu=from_pod(predictor),
        hints=labels_of(predictor),
        num_gpus=count,
        mig=mig,
        model=storage if storage and storage.startswith("hf://") else None,
        foreign=KSERVE_OPTIONS,
        env=env,
        container_memory_bytes=memory_limit(model.get("resources")),
    )
    key = next((k for k in ("args", "storageUri") if model.get(k) is not None), None)
    line = model.key_line(key) if key else model.line
    parser = FlagParser(reading.taint, None, reading.load_config, KSERVE_OPTIONS)
    reading.record(parser.parse(words, positional_model=False), (line, 1), inner)
    return True


def _model_id(word: Word) -> Word:
    """KServe's own `--model_id` is vLLM's model."""
    return word.with_text(re.sub(r"^--model[_-]id(?==|$)", "--model", word.text))


def _ray(reading: Reading, doc: Node, around: Surroundings) -> bool:
    from kvplan.gate.readers.ray import read_embedded_yaml

    config = doc.get("spec", "serveConfigV2")
    if config is not None and config.kind == "scalar" and "engine_kwargs" in config.text + "engine_kwargs":
        return read_embedded_yaml(reading, config, around.format)
    return False


def _kaito(reading: Reading, doc: Node, around: Surroundings) -> bool:
    """A KAITO workspace: the flags stand in a ConfigMap of the same file, under `vllm:`."""
    from kvplan.gate.yaml_nodes import Node as NodeType
    from kvplan.gate.yaml_nodes import YamlError, compose, documents

    instance = doc.text_of("resource", "instanceType") or doc.text_of(
        "spec", "template", "resource", "instanceType"
    )
    name = doc.text_of("inference", "config") or doc.text_of("spec", "template", "inference", "config")
    inner = around.but(gpu=from_instance(instance) if instance else None, format="kaito")
    result = ParsedFlags()
    place = (doc.key_line("inference") if doc.get("inference") else doc.line, 1)
    for other in documents(reading.text):
        if not isinstance(other, NodeType) or name is None or other.text_of("metadata", "name") != name:
            continue
        data = other.get("data")
        for _, _, value in data.entries() if data is not None else ():
            try:
                config = compose(value.text, value.place_of(0)[0] - 1) if value.kind == "scalar" else None
            except YamlError:
                reading.miss(value.line, "cannot parse the YAML in this text")
                continue
            vllm = config.get("vllm") if config is not None else None
            if vllm is not None:
                take_settings(reading, vllm.entries(), result, keep_unknown=True)
                place = (vllm.line, 1)
    result.unresolved_flags.setdefault("model", ("preset",))
    preset = doc.text_of("inference", "preset", "name") or doc.text_of(
        "spec", "template", "inference", "preset", "name"
    )
    result.unresolved[f"preset {preset}" if preset else "preset"] = None
    reading.record(result, place, inner)
    return True


def _dynamo(reading: Reading, doc: Node, around: Surroundings, maps: ConfigMaps) -> bool:
    services = doc.get("spec", "services")
    for name, _, service in services.entries() if services is not None else ():
        container = service.get("extraPodSpec", "mainContainer")
        if container is None:
            continue
        gpus = service.text_of("resources", "limits", "gpu") or service.text_of(
            "resources", "requests", "gpu"
        )
        nodes = service.text_of("multinode", "nodeCount") or "1"
        count = (
            int(gpus) * int(nodes)
            if gpus and gpus.isdigit() and nodes.isdigit() and len(gpus + nodes) < 8
            else None
        )
        read_container(reading, container, around.but(num_gpus=count, name=name, gpu=from_pod(service)), maps)
    return True
