"""A site that logs people in, each with a chat of their own: `python app.py`.

The site keeps the logins: a session in a cookie. For people who are logged in it signs a JWT that lasts a minute, with the secret
that it shares with Midstream. The page sends this token to Midstream, and fetches the next one while the session lasts.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import jwt
import uvicorn
from fastapi import Cookie, Depends, FastAPI, Form, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from people import FILE, SESSION_S, Sessions, Users

SECRET = os.environ.get("CHAT_SECRET", "")
SHORTEST_SECRET = 32
SERVICE = os.environ.get("CHAT_SERVICE", "ws://127.0.0.1:8000/v1/ws")
TOKEN_S = int(os.environ.get("CHAT_TOKEN_S", "60"))
PORT = int(os.environ.get("PORT", "5173"))

PAGE = Path(__file__).parent / "page"
CLIENT = Path(__file__).parents[2] / "app" / "page" / "client"
WRONG = '<p role="alert">The name or the password is wrong.</p>'

Session = Annotated[str | None, Cookie()]
Field = Annotated[str, Form(max_length=200)]

app = FastAPI(openapi_url=None)
app.mount("/page", StaticFiles(directory=PAGE))
app.mount("/midstream", StaticFiles(directory=CLIENT))
users, sessions = Users(FILE), Sessions()


def own_page(request: Request) -> None:
    """Refuses other sites' pages: they could log their visitors in as somebody else, who could then read what they write."""
    origin = request.headers.get("origin")  # browsers send it with every POST
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise HTTPException(403, "Another site's page may not log anybody in or out.")


@app.get("/")
def chat(session: Session = None) -> Response:
    """Return the chat, or a redirect to the login if nobody is logged in."""
    if sessions.user_of(session) is None:
        return RedirectResponse("/login", status_code=303)
    return HTMLResponse((PAGE / "chat.html").read_text())


@app.get("/login")
def login_form() -> HTMLResponse:
    """Return the login form."""
    return HTMLResponse((PAGE / "login.html").read_text())


@app.post("/login", dependencies=[Depends(own_page)])
def login(request: Request, name: Field, password: Field) -> Response:
    """Begins a session if the password is right. Other sites' pages do not send its cookie (`samesite`)."""
    if not users.let_in(name, password):
        return HTMLResponse(
            (PAGE / "login.html").read_text().replace("<!-- problem -->", WRONG), status_code=401
        )
    answer = RedirectResponse("/", status_code=303)
    secure = request.url.scheme == "https"
    secret = sessions.begin(name)
    answer.set_cookie("session", secret, max_age=SESSION_S, httponly=True, samesite="lax", secure=secure)
    return answer


@app.post("/logout", dependencies=[Depends(own_page)])
def logout(session: Session = None) -> Response:
    """Ends the session. From now on there is no new token, so Midstream ends what is still connected."""
    sessions.end(session)
    answer = RedirectResponse("/login", status_code=303)
    answer.delete_cookie("session")
    return answer


@app.post("/chat-token")
def chat_token(response: Response, session: Session = None) -> dict[str, str]:
    """Return the token that the page sends to Midstream, and Midstream's address."""
    user = sessions.user_of(session)
    if user is None:
        raise HTTPException(401, "Please log in.")
    response.headers["Cache-Control"] = "no-store"
    token = jwt.encode({"sub": user, "exp": int(time.time()) + TOKEN_S}, SECRET, algorithm="HS256")
    return {"user": user, "service": SERVICE, "token": token}


if __name__ == "__main__":
    if len(SECRET) < SHORTEST_SECRET:
        sys.exit(
            f"CHAT_SECRET needs {SHORTEST_SECRET} characters or more: "
            "the same that the chat service has as MIDSTREAM_JWT_SECRET."
        )
    uvicorn.run(app, host="127.0.0.1", port=PORT)
