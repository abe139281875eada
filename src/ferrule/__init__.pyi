# The face as type checkers see it: the same names as the table in `__init__.py` (tests/test_face.py compares them).

from ferrule import settings as settings
from ferrule.adapters.adapter import Adapter as Adapter
from ferrule.adapters.chat import ChatAdapter as ChatAdapter
from ferrule.adapters.json_object import JSONAdapter as JSONAdapter
from ferrule.adapters.xml_tags import XMLAdapter as XMLAdapter
from ferrule.bridges.mcp.client.group import connect_all as connect_all
from ferrule.bridges.mcp.client.mcp_server import MCPServer as MCPServer
from ferrule.bridges.mcp.client.mcp_server import mcp as mcp
from ferrule.bridges.mcp.sampling import sampling as sampling
from ferrule.bridges.mcp.server.app import MCPApp as MCPApp
from ferrule.bridges.mcp.server.app import serve as serve
from ferrule.bridges.mcp.server.context import MCPCall as MCPCall
from ferrule.bridges.mcp.server.context import current_mcp_call as current_mcp_call
from ferrule.errors import AdapterParseError as AdapterParseError
from ferrule.errors import AsyncToolError as AsyncToolError
from ferrule.errors import AuthenticationError as AuthenticationError
from ferrule.errors import BadRequestError as BadRequestError
from ferrule.errors import BoundaryError as BoundaryError
from ferrule.errors import ConfigurationError as ConfigurationError
from ferrule.errors import ConfirmationRejected as ConfirmationRejected
from ferrule.errors import ConfirmationRequired as ConfirmationRequired
from ferrule.errors import ContextOverflowError as ContextOverflowError
from ferrule.errors import DecisionError as DecisionError
from ferrule.errors import DuplicateToolError as DuplicateToolError
from ferrule.errors import FerruleError as FerruleError
from ferrule.errors import InputError as InputError
from ferrule.errors import LimitReachedError as LimitReachedError
from ferrule.errors import LMError as LMError
from ferrule.errors import MaxTurnsReachedError as MaxTurnsReachedError
from ferrule.errors import MCPConnectionError as MCPConnectionError
from ferrule.errors import MCPError as MCPError
from ferrule.errors import MCPProtocolError as MCPProtocolError
from ferrule.errors import MCPTimeoutError as MCPTimeoutError
from ferrule.errors import MCPToolError as MCPToolError
from ferrule.errors import MissingContentError as MissingContentError
from ferrule.errors import MissingKeyError as MissingKeyError
from ferrule.errors import RateLimitError as RateLimitError
from ferrule.errors import RefusalError as RefusalError
from ferrule.errors import ReplayMismatchError as ReplayMismatchError
from ferrule.errors import RunCancelledError as RunCancelledError
from ferrule.errors import RunError as RunError
from ferrule.errors import ScriptError as ScriptError
from ferrule.errors import SignatureError as SignatureError
from ferrule.errors import StoreError as StoreError
from ferrule.errors import ToolArgumentsError as ToolArgumentsError
from ferrule.errors import ToolCallError as ToolCallError
from ferrule.errors import ToolDefinitionError as ToolDefinitionError
from ferrule.errors import ToolError as ToolError
from ferrule.errors import ToolExecutionError as ToolExecutionError
from ferrule.errors import ToolLoadError as ToolLoadError
from ferrule.errors import ToolRetry as ToolRetry
from ferrule.errors import ToolStop as ToolStop
from ferrule.errors import ToolTimeoutError as ToolTimeoutError
from ferrule.errors import TooManyFaultsError as TooManyFaultsError
from ferrule.errors import UnavailableError as UnavailableError
from ferrule.errors import UnknownToolError as UnknownToolError
from ferrule.models.hosted import LM as LM
from ferrule.models.model import BaseLM as BaseLM
from ferrule.programs.lifecycle.resume import ResumeState as ResumeState
from ferrule.programs.lifecycle.resume import arun_until_done as arun_until_done
from ferrule.programs.lifecycle.resume import run_until_done as run_until_done
from ferrule.programs.module import Module as Module
from ferrule.programs.predict import ChainOfThought as ChainOfThought
from ferrule.programs.predict import Predict as Predict
from ferrule.programs.react import ReAct as ReAct
from ferrule.programs.tool_use.dynamic import ModuleContext as ModuleContext
from ferrule.programs.tool_use.dynamic import ModuleView as ModuleView
from ferrule.runs.confirmation.decisions import get_confirmation_status as get_confirmation_status
from ferrule.runs.confirmation.decisions import respond_to_confirmation as respond_to_confirmation
from ferrule.runs.gather import gather as gather
from ferrule.runs.limits import Limits as Limits
from ferrule.runs.observers import emit_event as emit_event
from ferrule.runs.observers import inspect_history as inspect_history
from ferrule.runs.observers import is_cancelled as is_cancelled
from ferrule.runs.observers import progress as progress
from ferrule.runs.protocols import Store as Store
from ferrule.runs.run import Run as Run
from ferrule.runs.store.sqlite import MemoryStore as MemoryStore
from ferrule.runs.store.sqlite import SQLiteStore as SQLiteStore
from ferrule.runs.stream import EventStream as EventStream
from ferrule.settings import configure as configure
from ferrule.settings import context as context
from ferrule.testing.offline.model import AutoLM as AutoLM
from ferrule.testing.offline.model import OfflineLM as OfflineLM
from ferrule.testing.replay import RecordLM as RecordLM
from ferrule.testing.replay import ReplayLM as ReplayLM
from ferrule.testing.scripted import ScriptedLM as ScriptedLM
from ferrule.tools.decorator import confirm_first as confirm_first
from ferrule.tools.decorator import tool as tool
from ferrule.tools.definition.mcp import MCPDefinition as MCPDefinition
from ferrule.tools.execution.tool_changes import Load as Load
from ferrule.tools.execution.tool_changes import ModuleCallback as ModuleCallback
from ferrule.tools.execution.tool_changes import Unload as Unload
from ferrule.tools.execution.tool_changes import module_callback as module_callback
from ferrule.tools.mcp.result import MCPResult as MCPResult
from ferrule.tools.mcp.safety import MCPFinding as MCPFinding
from ferrule.tools.mcp.safety import fence_untrusted as fence_untrusted
from ferrule.tools.mcp.safety import scan_mcp_definition as scan_mcp_definition
from ferrule.tools.search import defer_tools as defer_tools
from ferrule.tools.server_tools import connect_mcp_tools as connect_mcp_tools
from ferrule.tools.server_tools import convert_mcp_tool as convert_mcp_tool
from ferrule.tools.server_tools import estimate_mcp_tokens as estimate_mcp_tokens
from ferrule.tools.server_tools import find_shadowed_tools as find_shadowed_tools
from ferrule.tools.tool import Tool as Tool
from ferrule.tools.toolbox import Toolbox as Toolbox
from ferrule.values.calls.call import ToolCall as ToolCall
from ferrule.values.calls.call import ToolCalls as ToolCalls
from ferrule.values.calls.call import ToolResult as ToolResult
from ferrule.values.calls.context import Context as Context
from ferrule.values.calls.context import NotDone as NotDone
from ferrule.values.calls.context import Unknown as Unknown
from ferrule.values.confirmation.policy import Grant as Grant
from ferrule.values.confirmation.policy import Policy as Policy
from ferrule.values.confirmation.policy import allow as allow
from ferrule.values.confirmation.policy import ask as ask
from ferrule.values.confirmation.policy import deny as deny
from ferrule.values.confirmation.policy import ge as ge
from ferrule.values.confirmation.policy import gt as gt
from ferrule.values.confirmation.policy import le as le
from ferrule.values.confirmation.policy import lt as lt
from ferrule.values.confirmation.question import Decision as Decision
from ferrule.values.confirmation.question import Question as Question
from ferrule.values.content.parts import Audio as Audio
from ferrule.values.content.parts import File as File
from ferrule.values.content.parts import Image as Image
from ferrule.values.content.parts import Text as Text
from ferrule.values.content.parts import Type as Type
from ferrule.values.conversation.exchange import Capabilities as Capabilities
from ferrule.values.conversation.exchange import Delta as Delta
from ferrule.values.conversation.exchange import Request as Request
from ferrule.values.conversation.exchange import Response as Response
from ferrule.values.conversation.exchange import Usage as Usage
from ferrule.values.conversation.history import History as History
from ferrule.values.conversation.message import Message as Message
from ferrule.values.conversation.message import Messages as Messages
from ferrule.values.run.act import AskPerson as AskPerson
from ferrule.values.run.act import CallModel as CallModel
from ferrule.values.run.act import CallTools as CallTools
from ferrule.values.run.act import CheckDue as CheckDue
from ferrule.values.run.act import Conditions as Conditions
from ferrule.values.run.act import Once as Once
from ferrule.values.run.act import ReadConditions as ReadConditions
from ferrule.values.run.act import RuleCalls as RuleCalls
from ferrule.values.run.act import Tell as Tell
from ferrule.values.run.act import Within as Within
from ferrule.values.run.event import AttemptFailed as AttemptFailed
from ferrule.values.run.event import CallFinished as CallFinished
from ferrule.values.run.event import CallProgress as CallProgress
from ferrule.values.run.event import CallStarted as CallStarted
from ferrule.values.run.event import Custom as Custom
from ferrule.values.run.event import Decided as Decided
from ferrule.values.run.event import Event as Event
from ferrule.values.run.event import FieldDelta as FieldDelta
from ferrule.values.run.event import Formatted as Formatted
from ferrule.values.run.event import ModelAnswered as ModelAnswered
from ferrule.values.run.event import ModelCalled as ModelCalled
from ferrule.values.run.event import ParseFinished as ParseFinished
from ferrule.values.run.event import ParseStarted as ParseStarted
from ferrule.values.run.event import QuestionAsked as QuestionAsked
from ferrule.values.run.event import Resumed as Resumed
from ferrule.values.run.event import RuleUsed as RuleUsed
from ferrule.values.run.event import RunFinished as RunFinished
from ferrule.values.run.event import RunStarted as RunStarted
from ferrule.values.run.event import StepFinished as StepFinished
from ferrule.values.run.event import TextDelta as TextDelta
from ferrule.values.run.event import ThoughtDelta as ThoughtDelta
from ferrule.values.run.outcome import Prediction as Prediction
from ferrule.values.run.outcome import Step as Step
from ferrule.values.run.outcome import Trajectory as Trajectory
from ferrule.values.schema.lowering.lower import LoweredSchema as LoweredSchema
from ferrule.values.schema.lowering.lower import LoweredTools as LoweredTools
from ferrule.values.schema.lowering.lower import lower_schema as lower_schema
from ferrule.values.schema.lowering.lower import lower_tools as lower_tools
from ferrule.values.schema.lowering.rules import SchemaLoss as SchemaLoss
from ferrule.values.schema.python_types import convert_input_schema_to_tool_args as convert_input_schema_to_tool_args
from ferrule.values.signatures.signature import InputField as InputField
from ferrule.values.signatures.signature import OutputField as OutputField
from ferrule.values.signatures.signature import Signature as Signature

__version__: str

# Names of 0.1.0, kept for one version.
AuthenticationFailed = AuthenticationError
BadRequest = BadRequestError
ContextOverflow = ContextOverflowError
LimitReached = LimitReachedError
MCPTimeout = MCPTimeoutError
MaxTurnsReached = MaxTurnsReachedError
MissingContent = MissingContentError
RateLimited = RateLimitError
Refused = RefusalError
ReplayMismatch = ReplayMismatchError
RunCancelled = RunCancelledError
TooManyFaults = TooManyFaultsError
Unavailable = UnavailableError
