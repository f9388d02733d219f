# The types of `window.py`, where it is compiled (scripts/compile_parts.py).
cimport cython

@cython.final
cdef class Window:
    cdef Py_ssize_t _most
    cdef Py_ssize_t _count
    cdef Py_ssize_t _next
    cdef double[::1] _values

    cpdef add(self, double value)

    cpdef more(self, double value)

    @cython.locals(middle=Py_ssize_t)
    cpdef double median(self) except? -7

    @cython.locals(outer=Py_ssize_t, total=double, i=Py_ssize_t)
    cpdef double middle_mean(self) except? -7

    @cython.locals(i=Py_ssize_t)
    cpdef forget_dearer_half(self)

    @cython.locals(i=Py_ssize_t, at=Py_ssize_t, value=double)
    cdef int _sort(self) except -1
