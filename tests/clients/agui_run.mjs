// AG-UI's own HttpAgent: a tool that is called and answered, what was thought, an abort, and a refusal.
import { HttpAgent } from "@ag-ui/client";

const print = (did, result) => console.log(JSON.stringify({ did, ...result }));
const url = `${process.env.OPENAI_BASE_URL}/ag-ui`;
const tools = [
  {
    name: "get_weather",
    description: "Say what the weather is.",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
];
const question = (content) => [{ id: crypto.randomUUID(), role: "user", content }];

const agent = new HttpAgent({ url, initialMessages: question("What is the weather in Oslo?") });
const types = [];
const subscriber = { onEvent: ({ event }) => void types.push(event.type) };
await agent.runAgent({ tools, forwardedProps: { enable_thinking: true } }, subscriber);
const call = agent.messages.at(-1).toolCalls[0];
const called = [[call.function.name, JSON.parse(call.function.arguments)]];
agent.addMessage({ id: crypto.randomUUID(), role: "tool", toolCallId: call.id, content: "rain, 7 °C" });
await agent.runAgent({ tools }, subscriber);
print("tool", { called, text: agent.messages.at(-1).content });
print("events", { last: types.at(-1), roles: agent.messages.map((one) => one.role) });

const leaving = new HttpAgent({ url, initialMessages: question("Count from 1 to 500.") });
let text = "";
await leaving.runAgent(
  {},
  {
    onTextMessageContentEvent: ({ textMessageBuffer }) => {
      text = textMessageBuffer;
      if (text.includes(" 20,")) leaving.abortRun();
    },
  },
);
print("left", { text });

const refused = new HttpAgent({ url, initialMessages: question("Hello!") });
try {
  await refused.runAgent({ forwardedProps: { model: "another" } });
} catch (error) {
  print("refused", { status: error.status, type: error.payload.type, why: error.payload.message });
}
