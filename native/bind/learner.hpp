// Binds fugu::learn: networks that learn without torch.
#pragma once

#include <nanobind/nanobind.h>

namespace fugu {

// Adds NetLearner to the module.
void bind_learner(nanobind::module_& m);

} // namespace fugu
