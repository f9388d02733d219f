# The types of `lexical.py`, where it is compiled (scripts/compile_parts.py).
cimport cython

cdef long long _ROWS
cdef long long _PAIRS
cdef long long _LONG
cdef double _RATE
cdef double _LEAST
cdef Py_ssize_t _MATCH
cdef Py_ssize_t _ORIGIN
cdef Py_ssize_t _BEFORE
cdef Py_ssize_t _AFTER
cdef Py_ssize_t _STRIDE
cdef Py_ssize_t _SQUARE
cdef Py_ssize_t _FIRST_PAIR
cdef double _E

@cython.final
cdef class Lexical:
    cdef object _array
    cdef float[::1] _learnt

    @cython.locals(own=Py_ssize_t, last=Py_ssize_t, total=double, of_last=double)
    cpdef double odds(self, long long before, long long token, long long following, long long match,
                      long long origin) except? -7

    @cython.locals(own=Py_ssize_t, last=Py_ssize_t, pair=Py_ssize_t)
    cpdef int add(self, long long before, long long token, long long following, long long match,
                  long long origin, double error) except -1

    @cython.locals(learnt=double, rate=double)
    cdef int _step(self, Py_ssize_t weight, Py_ssize_t squares, double error) except -1

cdef Py_ssize_t _row(long long token) noexcept

@cython.locals(mixed=cython.longlong)
cdef Py_ssize_t _pair(long long token, long long following) noexcept

@cython.locals(left=double)
cpdef double moved(double chance, double odds) noexcept
