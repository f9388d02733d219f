# The types of `recycle_table.py`, where it is compiled (scripts/compile_parts.py).
cimport cython

cdef unsigned long long _MASK
cdef unsigned long long _PAIR
cdef unsigned long long _SINGLE
cdef int _EMPTY
cdef Py_ssize_t _NONE
cdef int _KNOWN
cdef int _TIMES
cdef int _REQUEST
cdef int _REQUESTS

@cython.final
cdef class SuccessorTable:
    cdef readonly Py_ssize_t k
    cdef readonly Py_ssize_t rows
    cdef int _shift
    cdef object _key_array
    cdef object _note_array
    cdef object _cell_array
    cdef unsigned long long[::1] _keys
    cdef int[::1] _notes
    cdef int[::1] _cells

    @cython.locals(key=cython.ulonglong, slot=Py_ssize_t)
    cpdef Py_ssize_t place(self, long long before, long long last, unsigned long long offset,
                           unsigned long long secret) except? -7

    cpdef int first(self, Py_ssize_t place) except? -7
    cpdef int times(self, Py_ssize_t place) except? -7
    cpdef bint own(self, Py_ssize_t place, long long request) except? -1

    @cython.locals(offset=cython.ulonglong, secret=cython.ulonglong, key=cython.ulonglong, note=int,
                   position=Py_ssize_t, last=cython.longlong, before=cython.longlong, token=int)
    cpdef follow(self, object text, Py_ssize_t start, object scope, long long request)

    @cython.locals(stored=cython.ulonglong, slot=Py_ssize_t, k=Py_ssize_t, at=Py_ssize_t, known=int, times=int,
                   note=int, place=Py_ssize_t, i=Py_ssize_t)
    cdef int _follow(self, unsigned long long key, int token, unsigned long long offset,
                     unsigned long long secret, int request) except -1
