/* Publish to a queue: the page behind the button at its head. */

import { PublishForm } from "../publishform.js";
import { QueueFrame } from "../queueframe.js";

const page = {
  route: "/queues/{queue}/publish",
  title: ({ queue }) => `Publish to ${queue}`,
  mount(view) {
    new QueueFrame(view, page).body.append(new PublishForm(view, view.values.queue).node);
  },
};
export default page;
