/** Composes the page: one client, one chat. */
import { ChatClient } from "./client/chat-client.js";
import { Credentials } from "./client/credentials.js";
import { Chat } from "./ui/chat.js";
import { preloadHighlighter } from "./ui/markdown/code-view.js";
import { lastingStorage, sessionStorage } from "./ui/settings/storage.js";
import { Theme } from "./ui/settings/theme.js";
import { translateDocument } from "./ui/words/translate.js";

// All addresses are relative: a proxy may serve the page below a path.
const url = new URL("v1/ws", location.href);
url.protocol = url.protocol.replace("http", "ws");

translateDocument();
const storage = lastingStorage();
const credentials = new Credentials({ session: sessionStorage(), lasting: storage, ticketUrl: "v1/tickets" });
const theme = new Theme(storage);
const features = ["reasoning", "tools", "continue", "titles", "interpret", "audio"];
const client = new ChatClient({ url: url.href, storage, session: sessionStorage(), credentials, features });
client.addEventListener("ready", preloadHighlighter, { once: true });
new Chat(client, { credentials, storage, theme }).start();
