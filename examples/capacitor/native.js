/** What the system tells an app, which a web view is not told of everywhere. */

import { App } from "@capacitor/app";
import { Network } from "@capacitor/network";
import { comeBack } from "./app.js";

App.addListener("resume", comeBack);
Network.addListener("networkStatusChange", comeBack);
