"""The version of CUDA that this machine's NVIDIA driver supports, according to libcuda.

The module needs only Python 3 and its standard library, because the Makefile runs it before anything is installed:

    python3 -I minllm/machine/driver.py        prints the extra whose CUDA wheels fit the driver (cu12 or cu13), or nothing

A driver runs programs of its own major version of CUDA and of older ones, so the wheels' major version must not exceed the driver's.
Source: CUDA Driver API, cuInit, cuDriverGetVersion (1000 * major + 10 * minor).
"""

import ctypes
import sys

SUPPORTED_MAJORS = (12, 13)
LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"  # file name of the driver's library


class NoDriver(Exception):
    """There is no usable NVIDIA driver; the message says why."""


def cuda_version(library_name=LIBRARY):
    """(major, minor) of the newest CUDA that the driver supports. Raises NoDriver."""
    try:
        library = ctypes.CDLL(library_name)
    except OSError as error:
        raise NoDriver(f"{library_name} does not load") from error
    version, devices = ctypes.c_int(0), ctypes.c_int(0)
    status = library.cuInit(0)
    if status != 0:
        raise NoDriver(f"the NVIDIA driver is installed but does not start: cuInit returned error {status}")
    status = library.cuDeviceGetCount(ctypes.byref(devices))
    if status != 0 or devices.value == 0:
        raise NoDriver("the NVIDIA driver sees no GPU")
    status = library.cuDriverGetVersion(ctypes.byref(version))
    if status != 0:
        raise NoDriver(f"the NVIDIA driver does not tell its version: error {status}")
    return version.value // 1000, version.value % 1000 // 10


def device_name(library_name=LIBRARY):
    """The name of the first GPU according to the driver. Raises NoDriver if there is no GPU."""
    cuda_version(library_name)
    library, name = ctypes.CDLL(library_name), ctypes.create_string_buffer(256)
    library.cuDeviceGetName(name, len(name), 0)
    return name.value.decode()


def release():
    """The driver's release number, such as 580.65.06, or "" if its kernel module is not loaded."""
    try:
        with open("/sys/module/nvidia/version", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def fitting_extra(version):
    """The extra for a driver that supports CUDA `version`: "cu12", "cu13", or ""."""
    majors = [major for major in SUPPORTED_MAJORS if major <= version[0]]
    return f"cu{majors[-1]}" if majors else ""


def main():
    """Print the extra that fits this machine, or an empty line if no driver is new enough."""
    try:
        print(fitting_extra(cuda_version()))
    except NoDriver:
        print("")


if __name__ == "__main__":
    main()
