import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { Chat } from "./chat.jsx";

const SERVICE = "ws://127.0.0.1:8000/v1/ws";

createRoot(document.querySelector("#root")).render(
  <StrictMode>
    <Chat url={SERVICE} />
  </StrictMode>,
);
