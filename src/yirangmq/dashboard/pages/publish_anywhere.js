/* Publish to a queue that is named here, and made by it. */

import { h } from "../dom.js";
import { PublishForm } from "../publishform.js";

export default {
  route: "/publish",
  title: () => "Publish",
  mount(view) {
    view.root.append(h("h1", {}, "Publish a message"), new PublishForm(view, null).node);
  },
};
