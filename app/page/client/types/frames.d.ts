export * from "../frames.js";
