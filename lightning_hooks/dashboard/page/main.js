// Starts the page in a window of its own. In TensorBoard this module is not loaded: TensorBoard calls `render` itself.
// page.js holds all other modules; the server joins them (see bundle.py).
import { render } from "./page.js";

render();
