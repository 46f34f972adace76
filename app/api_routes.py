"""The endpoints of the API. They share sessions, keys, limits and concurrency limits."""

from __future__ import annotations

from starlette.routing import BaseRoute, WebSocketRoute

from connections.api.account import AccountEndpoint, TicketEndpoint, account_routes, ticket_routes
from connections.api.admin.endpoint import AdminEndpoint
from connections.api.admin.operations import AdminOperations, ReplicaRequestHandler
from connections.api.agui.endpoint import agui_routes
from connections.api.ai_sdk.endpoint import ChatEndpoint, aisdk_routes
from connections.api.ai_sdk.service import ChatService
from connections.api.ai_sdk.websocket import ChatSocketEndpoint
from connections.api.anthropic.endpoint import messages_routes
from connections.api.attachments import AttachmentsEndpoint, attachments_routes
from connections.api.audio.routes import Audio, audio_routes
from connections.api.embeddings import embeddings_routes
from connections.api.endpoint import RequestContext
from connections.api.events import EventsEndpoint, events_routes
from connections.api.openai_chat.endpoint import openai_routes
from connections.api.owner_data import OwnerDataService
from connections.api.realtime.endpoint import RealtimeEndpoint, realtime_routes
from connections.api.realtime.translation.endpoint import TranslationEndpoint, translations_routes
from connections.api.responses.creator import ResponseCreator
from connections.api.responses.endpoint import responses_routes
from connections.api.responses.websocket import ResponsesWebSocketEndpoint
from connections.api.shares import SharesEndpoint, shares_routes
from connections.authentication.access import AccessControl
from connections.limits.limiters import Limiters
from connections.manager import ConnectionLifecycle
from connections.native.endpoint import NativeEndpoint
from connections.native.server_info import ServerInfo
from connections.voice.connection import VoiceService
from sessions.service import Sessions


def api_routes(
    *,
    sessions: Sessions,
    server_info: ServerInfo,
    access: AccessControl,
    lifecycle: ConnectionLifecycle,
    limiters: Limiters,
    audio: Audio,
    spoken: VoiceService | None,
    hello_s: float,
) -> list[BaseRoute]:
    """Return the routes of the API. `hello_s`: seconds that a connection has to send `hello`."""
    endpoint = NativeEndpoint(
        sessions=sessions,
        server_info=server_info,
        access=access,
        lifecycle=lifecycle,
        limiters=limiters,
        spoken=spoken,
        hello_s=hello_s,
    )
    request_context = RequestContext(
        access=access, limiters=limiters, server_info=server_info, refuses_tools=sessions.refuses_tools
    )
    realtime = RealtimeEndpoint(
        sessions=sessions,
        request_context=request_context,
        access=access,
        lifecycle=lifecycle,
        limiters=limiters,
        spoken=spoken,
    )
    translations = TranslationEndpoint(
        sessions=sessions,
        request_context=request_context,
        access=access,
        lifecycle=lifecycle,
        limiters=limiters,
        spoken=spoken,
    )
    creator = ResponseCreator(sessions, request_context)
    responses = ResponsesWebSocketEndpoint(
        creator=creator,
        request_context=request_context,
        access=access,
        lifecycle=lifecycle,
        limiters=limiters,
    )
    events = EventsEndpoint(sessions=sessions, access=access, lifecycle=lifecycle, limiters=limiters)
    host = ChatService(
        sessions=sessions,
        request_context=request_context,
        access=access,
        lifecycle=lifecycle,
        limiters=limiters,
    )
    pages = (access.origins, limiters.refusals)
    shares = SharesEndpoint(sessions, limiters)
    attachments = AttachmentsEndpoint(sessions=sessions, access=access, limiters=limiters)
    owners = OwnerDataService(sessions)
    account = AccountEndpoint(acts=owners, access=access, limiters=limiters)
    sessions.replicas.answered_by(ReplicaRequestHandler(sessions, lifecycle).handle)
    admin = AdminEndpoint(
        acts=AdminOperations(sessions, access, limiters.counts),
        owners=owners,
        access=access,
        limiters=limiters,
    )
    return [
        WebSocketRoute("/v1/ws", endpoint.accept),
        *openai_routes(sessions, request_context, *pages),
        *embeddings_routes(sessions.embedding, request_context, *pages),
        *responses_routes(request_context, responses, *pages),
        *messages_routes(sessions, request_context, *pages),
        *agui_routes(sessions, request_context, *pages),
        *audio_routes(audio, request_context, *pages),
        *events_routes(events, *pages),
        *attachments_routes(attachments, *pages),
        *shares_routes(shares, *pages),
        *account_routes(account, *pages),
        *ticket_routes(TicketEndpoint(access, limiters.refusals, limiters.take_ticket), *pages),
        *realtime_routes(realtime),
        *translations_routes(translations),
        *admin.routes(),
        *aisdk_routes(ChatEndpoint(host), ChatSocketEndpoint(host), *pages),
    ]
