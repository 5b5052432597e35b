// Registers a guard for the device `cuda` that does nothing. PyTorch's build for the CPU has none, and asks for one when
// it slices a fake tensor of that device.
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, NoOpDeviceGuardImpl<DeviceType::CUDA>);
}
