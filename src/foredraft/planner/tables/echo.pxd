# The types of `echo.py`, where it is compiled (scripts/compile_parts.py).
cimport cython

cdef Py_ssize_t _WIDTH
cdef Py_ssize_t _LONGEST
cdef Py_ssize_t _BULK
cdef unsigned long long _FIRST
cdef unsigned long long _SECOND
cdef int _BITS
cdef unsigned long long _MASK
cdef int _LEAST_BITS

@cython.final
cdef class _Text:
    cdef object places
    cdef int[::1] cells
    cdef int shift
    cdef Py_ssize_t most
    cdef Py_ssize_t read
    cdef Py_ssize_t at
    cdef Py_ssize_t length

@cython.final
cdef class Echo:
    cdef dict _texts

    @cython.locals(text=_Text)
    cpdef Py_ssize_t expected(self, object request) except -1

    @cython.locals(text=_Text, count=Py_ssize_t, end=Py_ssize_t)
    cpdef Py_ssize_t length(self, object request) except -1

    @cython.locals(text=_Text)
    cpdef tuple noted(self, object request)

    cpdef forget(self, object request)

@cython.locals(text=_Text)
cdef _Text _read(object tokens)

@cython.locals(first=Py_ssize_t)
cdef object _read_on(_Text text, object tokens)

@cython.locals(last=cython.longlong)
cdef int _step(_Text text, object tokens, Py_ssize_t end) except -1

@cython.locals(last=cython.ulonglong, before=cython.ulonglong, slot=Py_ssize_t, place=Py_ssize_t, length=Py_ssize_t)
cdef int _note(_Text text, object tokens, Py_ssize_t end) except -1

@cython.locals(most=Py_ssize_t, length=Py_ssize_t)
cdef Py_ssize_t _common(object tokens, Py_ssize_t place, Py_ssize_t end) except -1
