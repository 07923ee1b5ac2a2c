// Starts the page where it is a page of its own; TensorBoard calls `render` itself.
import { render } from "./index.js";

render();
