// A page of assistant-ui with its AI SDK runtime, whose transport is the AI SDK's over HTTP.
import { AssistantRuntimeProvider, ComposerPrimitive, MessagePrimitive, ThreadPrimitive } from "@assistant-ui/react";
import { AssistantChatTransport, useChatRuntime } from "@assistant-ui/react-ai-sdk";
import { createRoot } from "react-dom/client";

const api = `${new URLSearchParams(location.search).get("server")}/v1/ai-sdk/chat?client_id=ann`;
const transport = new AssistantChatTransport({ api });

const Message = ({ className }) => (
  <MessagePrimitive.Root className={className}>
    <MessagePrimitive.Parts />
  </MessagePrimitive.Root>
);
const components = {
  UserMessage: () => <Message className="user" />,
  AssistantMessage: () => <Message className="assistant" />,
};

function App() {
  return (
    <AssistantRuntimeProvider runtime={useChatRuntime({ transport })}>
      <ThreadPrimitive.Root>
        <ComposerPrimitive.Root>
          <ComposerPrimitive.Input aria-label="Message" />
          <ThreadPrimitive.If running={false}>
            <ComposerPrimitive.Send>Send</ComposerPrimitive.Send>
          </ThreadPrimitive.If>
          <ThreadPrimitive.If running>
            <ComposerPrimitive.Cancel>Stop</ComposerPrimitive.Cancel>
          </ThreadPrimitive.If>
        </ComposerPrimitive.Root>
        <ThreadPrimitive.Messages components={components} />
      </ThreadPrimitive.Root>
    </AssistantRuntimeProvider>
  );
}

createRoot(document.querySelector("#root")).render(<App />);
