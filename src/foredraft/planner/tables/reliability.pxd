# The types of `reliability.py`, where it is compiled (scripts/compile_parts.py).
cimport cython

cdef Py_ssize_t _RIGHT
cdef Py_ssize_t _COUNT
cdef Py_ssize_t _BIN
cdef Py_ssize_t _BINS

@cython.final
cdef class ReliabilityTable:
    cdef double[::1] _sums

    @cython.locals(at=Py_ssize_t)
    cpdef int add(self, double predicted, bint right) except -1
