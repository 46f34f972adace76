// The AI SDK with its defaults: `generateSpeech` (MP3), and `transcribe`, which hears that sound.
import { openai } from "@ai-sdk/openai";
import { generateSpeech, transcribe } from "ai";

const text = "Tell me a story about a lighthouse.";
const { audio } = await generateSpeech({ model: openai.speech("gpt-4o-mini-tts"), text, speed: 0.8 });
const heard = await transcribe({ model: openai.transcription("whisper-1"), audio: audio.uint8Array });
console.log(JSON.stringify({ did: "spoke", seconds: heard.durationInSeconds, heard: heard.text }));
