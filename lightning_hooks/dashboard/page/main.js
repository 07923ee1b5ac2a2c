// Starts the page in a window of its own. In TensorBoard this module is not loaded: TensorBoard calls `render` itself.
import { render } from "./index.js";

render();
