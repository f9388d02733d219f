# The types of `agreement.py`, where it is compiled (scripts/compile_parts.py).
cimport cython

cdef double _LEAST
cdef double _RATE
cdef Py_ssize_t _ROW
cdef Py_ssize_t _KIND
cdef Py_ssize_t _OWN
cdef Py_ssize_t _OTHER
cdef Py_ssize_t _LEARNT
cdef double _E

@cython.final
cdef class Agreement:
    cdef dict _places
    cdef object _array
    cdef double[::1] _weights

    cpdef Py_ssize_t place(self, object source) except -1

    @cython.locals(at=Py_ssize_t, odds=double, against=double)
    cpdef double chance(self, Py_ssize_t place, double own, double other, bint same) except? -7

    @cython.locals(at=Py_ssize_t, chance=double, step=double)
    cpdef double add(self, Py_ssize_t place, double own, double other, bint same, bint right) except? -7

cpdef double log_odds(double chance) except? -70
