/* Node.js over a unix socket: a producer and a consumer with Node's standard library and the HTTP API.
 *
 *     yirangmq serve --http unix:yirang-data/http.sock &
 *     node examples/unix_socket.mjs yirang-data/http.sock
 *
 * Needs Node.js. The socket has the mode 0600: a program that may open it needs no token. */

import { request } from "node:http";

const socketPath = process.argv[2];

/** Send a request with a JSON body, and return the JSON of the answer. */
function post(path, document) {
  return new Promise((resolve, reject) => {
    const options = { socketPath, path, method: "POST", headers: { "Content-Type": "application/json" } };
    const sent = request(options, (answer) => {
      let text = "";
      answer.setEncoding("utf8");
      answer.on("data", (part) => (text += part));
      answer.on("end", () => {
        if (answer.statusCode === 200) resolve(JSON.parse(text));
        else reject(new Error(`status ${answer.statusCode}: ${text}`));
      });
    });
    sent.on("error", reject);
    sent.end(JSON.stringify(document));
  });
}

const queue = "/v1/queues/node-jobs";
const receipt = await post(`${queue}/messages`, [{ n: 1 }, { n: 2 }, { n: 3 }]);
console.log(`${receipt.stored} on disk`);

for (;;) {
  const { messages } = await post(`${queue}/lease`, { max: 2, waitSec: 0.5, leaseSec: 60, consumer: "node" });
  if (messages.length === 0) break;
  for (const { message } of messages) console.log(`working on ${JSON.stringify(message.payload)}`);
  await post(`${queue}/ack`, { leases: messages.map((one) => one.lease.leaseId) });
}
console.log("the queue is empty");
