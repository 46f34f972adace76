"""`/v1/ai-sdk/chat`: the AI SDK's chats, over HTTP and over a WebSocket, on stored conversations."""
