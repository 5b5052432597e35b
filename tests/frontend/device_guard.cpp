// Registers a device guard for `cuda` that does nothing. PyTorch needs one to slice a fake tensor on that device, and
// its CPU build has none.
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, NoOpDeviceGuardImpl<DeviceType::CUDA>);
}
