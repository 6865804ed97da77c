/* Publish to a queue: a tab of the queue. */

import { PublishForm } from "../publishform.js";
import { QueueFrame } from "../queueframe.js";

const page = {
  route: "/queues/{queue}/publish",
  title: ({ queue }) => `Publish to ${queue}`,
  tab: { label: "Publish", order: 30 },
  mount(view) {
    new QueueFrame(view, page).body.append(new PublishForm(view, view.values.queue).node);
  },
};
export default page;
