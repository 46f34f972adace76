// Not run on Android. Kotlin 2.4.20 compiled it, and it was run once, by hand, on a JVM with OkHttp 3.13.1: it sent a
// message, stopped the reply, and had what was seen in its history. A test compares its frames with the protocol.
// OkHttp of that age takes the close codes 1012 and 1013 for failures; `lost` is called for these, too.

import okhttp3.OkHttpClient
import okhttp3.Request
import okhttp3.Response
import okhttp3.WebSocket
import okhttp3.WebSocketListener
import org.json.JSONArray
import org.json.JSONObject

/** One conversation. `changed` and `lost` are called on OkHttp's thread: go to yours there. */
class Chat(
    private val changed: () -> Unit,
    private val lost: (String) -> Unit,
) : WebSocketListener() {
    val messages = mutableListOf<Pair<String, String>>()
    var reply: String? = null // while it grows
        private set

    private val http = OkHttpClient()
    private val conversation = "default"
    private var socket: WebSocket? = null
    private var stopped = false

    fun connect(token: String) {
        socket?.cancel()
        val request = Request.Builder()
            .url("wss://chat.example.org/v1/ws")
            .header("Authorization", "Bearer $token")
            .build()
        socket = http.newWebSocket(request, this)
    }

    /** `id` stays the same when a message is sent again. */
    fun send(text: String, id: String) {
        messages += "user" to text
        say(
            "type" to "send", "client_msg_id" to id, "conversation_id" to conversation,
            "content" to text, "on_busy" to "interrupt", "grace_s" to 60,
        )
    }

    fun stop() {
        val shown = reply ?: return
        stopped = true
        val seen = shown.codePointCount(0, shown.length)
        say("type" to "cancel", "conversation_id" to conversation, "seen_off" to seen)
    }

    override fun onOpen(webSocket: WebSocket, response: Response) {
        webSocket.send(JSONObject(mapOf("type" to "hello")).toString())
    }

    override fun onMessage(webSocket: WebSocket, text: String) {
        if (webSocket !== socket) return // of a connection that was given up
        val frame = JSONObject(text)
        when (frame.getString("type")) {
            "ready", "gap", "done" -> say("type" to "history", "conversation_id" to conversation)
            "history" -> show(frame.getJSONArray("messages"))
            "accepted" -> {
                // That of another device.
                if (!frame.isNull("content")) messages += "user" to frame.getString("content")
                reply = ""
                stopped = false
            }
            "delta" -> if (!stopped) reply = reply.orEmpty() + frame.getString("text")
            "error" -> if (frame.getString("code") != "not_found") { // nothing was said yet
                messages += "error" to frame.getString("message")
            }
        }
        changed()
    }

    override fun onFailure(webSocket: WebSocket, t: Throwable, response: Response?) {
        if (webSocket === socket) lost(t.message.orEmpty())
    }

    override fun onClosed(webSocket: WebSocket, code: Int, reason: String) {
        if (webSocket === socket) lost(reason)
    }

    private fun show(found: JSONArray) {
        messages.clear()
        reply = null
        for (n in 0 until found.length()) {
            val message = found.getJSONObject(n)
            val text = message.getString("content")
            if (message.getString("status") == "running") reply = text
            else messages += message.getString("role") to text
        }
    }

    private fun say(vararg frame: Pair<String, Any>) =
        socket?.send(JSONObject(frame.toMap()).toString())
}
