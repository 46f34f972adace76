// Neither compiled nor run. A test compares its frames with the protocol.

import Combine
import Foundation

/// One conversation. Call `run` when the app is in front, and again when it ends.
@MainActor
final class Chat: ObservableObject {
    @Published private(set) var messages: [(role: String, text: String)] = []
    @Published private(set) var reply: String?  // while it grows

    private let url = URL(string: "wss://chat.example.org/v1/ws")!
    private let conversation = "default"
    private var socket: URLSessionWebSocketTask?
    private var stopped = false

    /// Connects and listens until the connection is lost.
    func run(token: String) async throws {
        var request = URLRequest(url: url)
        request.setValue("Bearer \(token)", forHTTPHeaderField: "Authorization")
        socket?.cancel()
        let socket = URLSession.shared.webSocketTask(with: request)
        self.socket = socket
        socket.resume()
        try await say(["type": "hello"])
        while true {
            guard case .string(let text) = try await socket.receive() else { continue }
            let frame = try JSONSerialization.jsonObject(with: Data(text.utf8))
            try await take(frame as? [String: Any] ?? [:])
        }
    }

    /// `id` stays the same when a message is sent again.
    func send(_ text: String, id: String) async throws {
        messages.append(("user", text))
        try await say([
            "type": "send", "client_msg_id": id, "conversation_id": conversation,
            "content": text, "on_busy": "interrupt", "grace_s": 60,
        ])
    }

    func stop() async throws {
        guard let reply else { return }
        stopped = true
        let seen = reply.unicodeScalars.count
        try await say(["type": "cancel", "conversation_id": conversation, "seen_off": seen])
    }

    private func take(_ frame: [String: Any]) async throws {
        switch frame["type"] as? String {
        case "ready", "gap", "done":
            try await say(["type": "history", "conversation_id": conversation])
        case "history":
            show(frame["messages"] as? [[String: Any]] ?? [])
        case "accepted":
            if let content = frame["content"] as? String {  // of another device
                messages.append(("user", content))
            }
            reply = ""
            stopped = false
        case "delta" where !stopped:
            reply = (reply ?? "") + (frame["text"] as? String ?? "")
        case "error" where frame["code"] as? String != "not_found":  // nothing was said yet
            messages.append(("error", frame["message"] as? String ?? ""))
        default:
            break  // what it does not know changes nothing
        }
    }

    private func show(_ found: [[String: Any]]) {
        messages = []
        reply = nil
        for message in found {
            let text = message["content"] as? String ?? ""
            if message["status"] as? String == "running" {
                reply = text
            } else {
                messages.append((message["role"] as? String ?? "", text))
            }
        }
    }

    private func say(_ frame: [String: Any]) async throws {
        let data = try JSONSerialization.data(withJSONObject: frame)
        try await socket?.send(.string(String(decoding: data, as: UTF8.self)))
    }
}
