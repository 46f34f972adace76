"""`/v1/ai-sdk/chat`: the AI SDK's chats, on stored conversations."""
