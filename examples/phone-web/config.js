/** Where the service is. A page on https needs `wss:`. */
export const SERVICE = "ws://127.0.0.1:8000/v1/ws";
