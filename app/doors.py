"""The doors of the API. They share sessions, keys, limits and concurrency limits."""

from __future__ import annotations

from starlette.routing import BaseRoute, WebSocketRoute

from connections.account.acts import OwnersActs
from connections.account.door import AccountDoor, account_routes
from connections.admin.acts import AdminActs
from connections.admin.door import AdminDoor
from connections.admin.questions import Desk
from connections.agui.door import agui_routes
from connections.aisdk.door import ChatDoor
from connections.aisdk.host import Guests, Host
from connections.aisdk.routes import aisdk_routes
from connections.aisdk.socket_door import ChatSocketDoor
from connections.attachments.door import AttachmentsDoor, attachments_routes
from connections.audio.routes import Audio, audio_routes
from connections.authentication.access import AccessControl
from connections.authentication.ticket_door import TicketDoor, ticket_routes
from connections.embeddings.door import embeddings_routes
from connections.events.door import EventsDoor, events_routes
from connections.limits.limiters import Limiters
from connections.line.presence import Presence
from connections.messages.routes import messages_routes
from connections.native.endpoint import Endpoint
from connections.native.greeting import Greeter
from connections.openai.reception import Reception
from connections.openai.routes import openai_routes
from connections.realtime.door import RealtimeDoor, realtime_routes
from connections.responses.creating import Creator
from connections.responses.routes import responses_routes
from connections.responses.socket import ResponsesSocket
from connections.shares.door import SharesDoor, shares_routes
from connections.spoken.desk import SpokenDesk
from connections.translations.door import TranslationsDoor, translations_routes
from sessions.service import Sessions


def doors(
    *,
    sessions: Sessions,
    greeter: Greeter,
    access: AccessControl,
    presence: Presence,
    limiters: Limiters,
    audio: Audio,
    spoken: SpokenDesk | None,
    hello_s: float,
) -> list[BaseRoute]:
    """Return the routes of the API. `hello_s`: seconds that a connection has to send `hello`."""
    endpoint = Endpoint(
        sessions=sessions,
        greeter=greeter,
        access=access,
        presence=presence,
        limiters=limiters,
        spoken=spoken,
        hello_s=hello_s,
    )
    reception = Reception(
        access=access, limiters=limiters, greeter=greeter, refuses_tools=sessions.refuses_tools
    )
    realtime = RealtimeDoor(
        sessions=sessions,
        reception=reception,
        access=access,
        presence=presence,
        limiters=limiters,
        spoken=spoken,
    )
    translations = TranslationsDoor(
        sessions=sessions,
        reception=reception,
        access=access,
        presence=presence,
        limiters=limiters,
        spoken=spoken,
    )
    creator = Creator(sessions, reception)
    responses = ResponsesSocket(
        creator=creator, reception=reception, access=access, presence=presence, limiters=limiters
    )
    events = EventsDoor(sessions=sessions, access=access, presence=presence, limiters=limiters)
    host = Host(
        sessions=sessions,
        reception=reception,
        guests=Guests(access),
        presence=presence,
        limiters=limiters,
    )
    pages = (access.origins, limiters.refusals)
    shares = SharesDoor(sessions, limiters)
    attachments = AttachmentsDoor(sessions=sessions, access=access, limiters=limiters)
    owners = OwnersActs(sessions)
    account = AccountDoor(acts=owners, access=access, limiters=limiters)
    sessions.replicas.answered_by(Desk(sessions, presence).hear)
    admin = AdminDoor(
        acts=AdminActs(sessions, access, limiters.counts), owners=owners, access=access, limiters=limiters
    )
    return [
        WebSocketRoute("/v1/ws", endpoint.accept),
        *openai_routes(sessions, reception, *pages),
        *embeddings_routes(sessions.embedding, reception, *pages),
        *responses_routes(sessions, reception, responses, *pages),
        *messages_routes(sessions, reception, *pages),
        *agui_routes(sessions, reception, *pages),
        *audio_routes(audio, reception, *pages),
        *events_routes(events, *pages),
        *attachments_routes(attachments, *pages),
        *shares_routes(shares, *pages),
        *account_routes(account, *pages),
        *ticket_routes(TicketDoor(access, limiters.refusals, limiters.take_ticket), *pages),
        *realtime_routes(realtime),
        *translations_routes(translations),
        *admin.routes(),
        *aisdk_routes(ChatDoor(host), ChatSocketDoor(host), *pages),
    ]
