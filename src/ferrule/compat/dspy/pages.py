"""The public submodules of DSPy 3.3.1. Each has all names of the facade."""

PAGES = """
adapters adapters.baml_adapter adapters.base adapters.chat_adapter adapters.json_adapter
adapters.two_step_adapter adapters.types adapters.types.audio adapters.types.base_type
adapters.types.citation adapters.types.code adapters.types.document adapters.types.file
adapters.types.history adapters.types.image adapters.types.reasoning adapters.types.tool
adapters.utils adapters.xml_adapter clients clients.base_lm clients.cache clients.databricks
clients.disk_serialization clients.embedding clients.lm clients.lm_local clients.openai
clients.openai_format clients.provider clients.utils_finetune core core.types datasets
datasets.alfworld datasets.alfworld.alfworld datasets.colors datasets.dataloader
datasets.dataset datasets.gsm8k datasets.hotpotqa datasets.math dsp dsp.colbertv2 dsp.utils
dsp.utils.dpr dsp.utils.settings dsp.utils.utils evaluate evaluate.auto_evaluation
evaluate.evaluate evaluate.metrics predict predict.aggregation predict.avatar
predict.avatar.avatar predict.avatar.models predict.avatar.signatures predict.best_of_n
predict.chain_of_thought predict.code_act predict.flex predict.flex.bridge predict.flex.ctx
predict.flex.flex predict.flex.primitives_doc predict.knn predict.multi_chain_comparison
predict.parallel predict.parameter predict.predict predict.program_of_thought predict.react
predict.react_v2 predict.refine predict.retry predict.rlm primitives primitives.base_module
primitives.code_interpreter primitives.example primitives.module primitives.prediction
primitives.python_interpreter primitives.repl_types primitives.sandbox_serializable propose
propose.dataset_summary_generator propose.grounded_proposer propose.propose_base propose.utils
retrievers retrievers.databricks_rm retrievers.embeddings retrievers.retrieve
retrievers.weaviate_rm signatures signatures.field signatures.signature signatures.utils
streaming streaming.messages streaming.streamify streaming.streaming_listener teleprompt
teleprompt.avatar_optimizer teleprompt.bettertogether teleprompt.bootstrap
teleprompt.bootstrap_finetune teleprompt.bootstrap_trace teleprompt.copro_optimizer
teleprompt.ensemble teleprompt.gepa teleprompt.gepa.gepa teleprompt.gepa.gepa_flex_utils
teleprompt.gepa.gepa_utils teleprompt.gepa.instruction_proposal teleprompt.grpo
teleprompt.infer_rules teleprompt.knn_fewshot teleprompt.mipro_optimizer_v2
teleprompt.random_search teleprompt.signature_opt teleprompt.simba teleprompt.simba_utils
teleprompt.teleprompt teleprompt.teleprompt_optuna teleprompt.utils teleprompt.vanilla utils
utils.annotation utils.asyncify utils.caching utils.callback utils.callback_context
utils.constants utils.dummies utils.exceptions utils.hasher utils.inspect_history
utils.langchain_tool utils.lazy_import utils.logging_utils utils.magicattr utils.mcp
utils.parallelizer utils.saving utils.syncify utils.unbatchify utils.usage_tracker
"""
