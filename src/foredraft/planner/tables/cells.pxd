# The types of `cells.py`, where it is compiled (scripts/compile_parts.py).
cimport cython

cdef Py_ssize_t _COLUMNS
cdef Py_ssize_t _ROWS
cdef Py_ssize_t _CELL
cdef Py_ssize_t _WRONG
cdef Py_ssize_t _SIZE
cdef double[::1] _EDGES
cdef int[::1] _ROW_OF

@cython.final
cdef class Cells:
    cdef dict _places
    cdef object _array
    cdef double[::1] _counts

    cpdef Py_ssize_t place(self, object source) except -1

    @cython.locals(column=Py_ssize_t)
    cpdef Py_ssize_t cell(self, Py_ssize_t place, Py_ssize_t match, double confidence) except -1

    cpdef double right(self, Py_ssize_t cell) except? -7

    cpdef double wrong(self, Py_ssize_t cell) except? -7

    cpdef int add(self, Py_ssize_t cell, bint right) except -1
