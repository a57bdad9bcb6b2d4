// Any layout, value and row for the packer: bytes go to packer.py, which asks the reference too.
#include <Python.h>

#include <string>

#include "input.hpp"

namespace {

PyObject* run = nullptr;

std::string setting(const char* name) {
    const char* found = std::getenv(name);
    promise(found, "it is set", name);
    return found;
}

} // namespace

// An interpreter of the virtual environment, whose fugu is the one of PYTHONPATH.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    PyConfig_SetBytesString(&config, &config.program_name, setting("FUGU_FUZZ_PYTHON").c_str());
    config.install_signal_handlers = 0;
    promise(!PyStatus_Exception(Py_InitializeFromConfig(&config)), "Python starts", "packer");
    PyConfig_Clear(&config);
    PyObject* module = PyImport_ImportModule("packer");
    run = module ? PyObject_GetAttrString(module, "run") : nullptr;
    if (!run)
        PyErr_Print();
    promise(run, "packer.py is on PYTHONPATH", "packer");
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    PyObject* given = PyBytes_FromStringAndSize(reinterpret_cast<const char*>(data),
                                                static_cast<Py_ssize_t>(size));
    PyObject* said = given ? PyObject_CallOneArg(run, given) : nullptr;
    Py_XDECREF(given);
    if (!said)
        PyErr_Print();
    promise(said, "the native packer does what the reference does", "packer");
    Py_DECREF(said);
    return 0;
}
