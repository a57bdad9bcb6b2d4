// Binds fugu::nets: networks that run without torch.
#pragma once

#include <nanobind/nanobind.h>

namespace fugu {

// Adds NetRunner and net_targets() to the module.
void bind_nets(nanobind::module_& m);

} // namespace fugu
