# The types of `suffix_index.py`, where it is compiled (scripts/compile_parts.py).
cimport cython

cdef unsigned long long _BASE
cdef unsigned long long _MASK
cdef unsigned long long _MIX
cdef Py_ssize_t _REACH

@cython.final
cdef class SuffixIndex:
    cdef readonly tuple levels
    cdef readonly Py_ssize_t size
    cdef object _buffer
    cdef long long[::1] _widths
    cdef unsigned long long[::1] _powers
    cdef unsigned long long[::1] _hashes
    cdef int[::1] _view
    cdef int[:, ::1] _heads
    cdef int[:, ::1] _links
    cdef Py_ssize_t _capacity
    cdef int _shift

    @cython.locals(at=Py_ssize_t, end=Py_ssize_t, i=Py_ssize_t, width=Py_ssize_t,
                   value=cython.ulonglong, leaving=cython.ulonglong, bucket=cython.ulonglong)
    cdef int _append(self, int token) except -1

    @cython.locals(width=Py_ssize_t, theirs=Py_ssize_t, end=Py_ssize_t, first=int, last=int)
    cpdef list occurrences(self, Py_ssize_t level, SuffixIndex text, Py_ssize_t limit)

    @cython.locals(before=Py_ssize_t, last=Py_ssize_t, length=Py_ssize_t, end=Py_ssize_t)
    cpdef list lengths(self, object ends, SuffixIndex text)

    cpdef int after(self, Py_ssize_t end, Py_ssize_t place) except? -7
