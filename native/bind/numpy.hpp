// NumPy's C API, imported once (by module.cpp) and shared by every file of the module.
#pragma once

#include <Python.h>

#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL fugu_numpy_api
#ifndef FUGU_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>
